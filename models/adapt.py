"""Any PyTorch module as what the suite needs: an ``nn.Sequential`` of named blocks.

A module's children become the blocks if computing them one after the other gives the module's own outputs and its own
gradients: in training and in evaluation mode, for small and large inputs and for other parameters too. Otherwise the
whole module is one block.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_draws, torch_generator
from florilegium.models.blocks import WHOLE, OneBlock
from florilegium.models.dry_run import check_outputs, check_tensors, materialise, outputs, random_inputs, undisturbed
from florilegium.models.parameters import trained
from florilegium.models.trial import check_opened, tried

_SHIFT = 0.05
"""Width of the random shift of parameters while outputs are compared, since a layer of zeros hides differences."""
_TOLERANCE = 1e-6
"""Largest difference between tensors that count as equal, relative to the largest entry."""
_SCALES = (0.1, 10.0, 100.0)
"""Further factors of the random inputs for which outputs are compared, since a clamp shows in large values only."""

Children = Sequence[tuple[str, nn.Module]]


class Plain(nn.Module):
    """Puts inputs in PyTorch's default memory layout, for networks that use ``view`` on outputs of convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy of ``x`` in the default layout."""
        return x.clone(memory_format=torch.contiguous_format)


def adapt(
    module: nn.Module, shape: tuple[int, ...], classes: int, *, codes: int = 0, positions: tuple[int, ...] = ()
) -> nn.Sequential:
    """Return ``module`` as a sequence of named blocks, after a dry run; its parameters keep their values.

    A module may state its blocks: an attribute ``blocks`` lists the names of its children, first to last.

    Args:
        module: the module in its initial state; lazy layers draw from PyTorch's global generator.
        shape: shape of one input.
        classes: number of outputs.
        codes: number of different int64 codes in the inputs; 0: they are numbers.
        positions: the positions of which each has as many outputs.

    Returns:
        The blocks, with convolutions in channels-last layout where the module supports it; :class:`OneBlock` if the
        module is not a sequence of blocks. Attribute ``found`` says what a user should know of it
        (:class:`florilegium.models.trial.Found`).

    Raises:
        ValueError: if the module cannot be trained, or is not a sequence of the blocks that it states. The message
            continues a sentence about the network.
    """
    x = random_inputs(shape, codes=codes)
    materialise(module, x)
    check_tensors(module)
    with undisturbed(module):
        first: Children = [] if _lay_out(module, x) else [(_unused("layout", module._modules), Plain())]
        whole = _sequence([*first, (WHOLE, module)])
        check_outputs(whole, x, (classes, *positions))
        found = tried(whole, x)
        network = _blocks(module, first, x)
    network.found = found  # type: ignore[assignment]
    return network


def check_built_again(module: nn.Module, again: nn.Module, shape: tuple[int, ...], *, codes: int) -> None:
    """Check that what becomes of ``module``, which :func:`adapt` has adapted, can be opened later.

    Args:
        module: the module.
        again: what the same function has returned a second time, after other random draws.
        shape, codes: those of :func:`adapt`.

    Raises:
        ValueError: if it cannot. The message continues a sentence about the network.
    """
    if again is not module:
        x = random_inputs(shape, codes=codes)
        materialise(again, x)
        check_opened(module, again, x)


def _lay_out(module: nn.Module, x: Tensor) -> bool:
    """Put convolutions in channels-last layout (1.3 to 2 times faster on CPUs); return whether the module allows it."""
    images = [parameter for parameter in module.parameters() if parameter.dim() == 4]
    for parameter in images:
        parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    try:
        outputs(module, x, training=False)
    except Exception as error:  # any other error is reported by check_outputs
        if "view size is not compatible" in str(error):
            for parameter in images:
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            return False
    return True


def _blocks(module: nn.Module, first: Children, x: Tensor) -> nn.Sequential:
    """Return the blocks of ``module``, after the children ``first`` that prepare its inputs ``x``."""
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    stated = getattr(module, "blocks", None)
    if isinstance(stated, list | tuple) and all(isinstance(name, str) for name in stated):
        named = dict(children)
        if unknown := [name for name in stated if name not in named]:
            raise ValueError(f"states blocks = {[*stated]}, but it has no child '{unknown[0]}' ({', '.join(named)})")
        children = [(name, named[name]) for name in stated]
    else:
        stated = None  # a child of this name, or none
    why = _stray(module, children) or _shared(children)
    if not why and type(module) is nn.Sequential:
        return _sequence([*first, *children])
    if not why and stated is None and sum(any(True for _ in child.parameters()) for _, child in children) < 2:
        why = "only one of its children has parameters"
    if not why:
        chain = _faithful(module, first, children, x)
        if chain is not None:
            return chain
        why = "its children one after the other do not give its own outputs and gradients"
    if stated is not None:
        raise ValueError(f"states blocks = {[*stated]}, but is not a sequence of them: {why}")
    one = OneBlock(OrderedDict([*first, (WHOLE, module)]))
    one.why = why
    return one


def _stray(module: nn.Module, children: Children) -> str:
    """Say which tensor of the module belongs to none of ``children``; return "" if all do."""
    owned = {id(tensor) for _, child in children for _, tensor in _tensors(child)}
    return next((f"'{name}' belongs to none of its blocks" for name, t in _tensors(module) if id(t) not in owned), "")


def _shared(children: Children) -> str:
    """Say which tensor belongs to several of ``children``; return "" if none does."""
    owners = Counter(id(tensor) for _, child in children for _, tensor in _tensors(child))
    named = [(f"{name}.{path}", tensor) for name, child in children for path, tensor in _tensors(child)]
    return next((f"'{name}' belongs to several of its blocks" for name, tensor in named if owners[id(tensor)] > 1), "")


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _faithful(module: nn.Module, first: Children, children: Children, x: Tensor) -> nn.Sequential | None:
    """Return the sequence of ``children`` that computes the outputs of ``module``; None if there is none.

    If they do not as they are, images are flattened before the first dense layer, as many a ``forward`` does. The
    parameters are changed; the caller restores them.
    """
    with torch.no_grad(), torch_draws(0, "dry run", "shift"):
        for parameter in module.parameters():
            parameter.add_(torch.rand_like(parameter).sub_(0.5), alpha=_SHIFT)
    whole = _sequence([*first, (WHOLE, module)])
    for flattens in (False, True):
        try:
            chain = _sequence([*first, *(_flattened(children, module, first, x) if flattens else children)])
            if _same_gradients(whole, chain, x) and all(_same_outputs(whole, chain, other) for other in _scaled(x)):
                return chain
        except Exception:  # children that do not fit together raise anything
            continue
    return None


@torch.no_grad()
def _flattened(children: Children, module: nn.Module, first: Children, x: Tensor) -> Children:
    """Return ``children`` with an ``nn.Flatten`` before each that begins with a dense layer but receives images."""
    result: list[tuple[str, nn.Module]] = []
    module.eval()
    for _, child in first:
        x = child(x)
    for name, child in children:
        if x.dim() == 4 and _begins_dense(child):
            result.append((_unused("flatten", [*module._modules, *dict(result)]), nn.Flatten()))
            x = x.flatten(1)
        result.append((name, child))
        x = child(x)
    return result


def _begins_dense(module: nn.Module) -> bool:
    """Return whether the first layer with parameters of its own is dense."""
    layers = (layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None)
    return isinstance(next(layers, None), nn.Linear)


def _scaled(x: Tensor) -> list[Tensor]:
    return [x * scale for scale in _SCALES] if x.is_floating_point() else []


def _same_outputs(whole: nn.Module, chain: nn.Module, x: Tensor) -> bool:
    """Return whether two networks with the same parameters have the same outputs for inputs ``x``."""
    return _near(*(outputs(network, x, training=False) for network in (whole, chain)))


def _same_gradients(whole: nn.Module, chain: nn.Module, x: Tensor) -> bool:
    """Return whether two networks with the same parameters have the same outputs and gradients, in either mode."""
    parameters = [*trained(whole).values()]
    for training in (False, True):
        expected, found = (_outputs_and_gradients(network, parameters, x, training) for network in (whole, chain))
        if not all(map(_near, expected, found)):
            return False
    return True


def _outputs_and_gradients(network: nn.Module, parameters: Sequence[Tensor], x: Tensor, training: bool) -> list[Tensor]:
    """Return the outputs of a network, and the gradients of a random linear function of them."""
    result = outputs(network, x, training=training, gradients=True)
    weights = torch.randn(result.shape, generator=torch_generator(0, "dry run", "gradient"))
    gradients = torch.autograd.grad((result * weights).sum(), parameters, materialize_grads=True)
    return [result.detach(), *gradients]


def _near(expected: Tensor, found: Tensor) -> bool:
    same = expected.shape == found.shape
    return same and bool((found - expected).abs().max() <= _TOLERANCE * expected.abs().max())


def _unused(name: str, taken: Iterable[str]) -> str:
    """Return ``name``, with as many underscores behind it as make it none of those that are taken."""
    names = set(taken)
    while name in names:
        name += "_"
    return name


def _sequence(children: Children) -> nn.Sequential:
    return nn.Sequential(OrderedDict(children))
