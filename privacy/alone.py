"""Whether Opacus' per-example gradients of a network are those of the examples alone, by a dry run.

For some layers they are not, and no error is raised: for convolutions that are padded with anything but zeros,
embeddings with a padding index, bags with a repeated entry, LSTMs of Opacus on packed sequences. Where gradients of
different examples are confused, the clipping norm does not bound what one example contributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from florilegium.common.errors import RunError
from florilegium.common.seeds import torch_draws, torch_generator
from florilegium.privacy.dp_sgd import PrivateGradients

_TOLERANCE = 1e-3
"""Largest difference that rounding explains, relative to the largest gradient of the network."""


def unlike_alone(network: nn.Module, x: Tensor, *, ghost: bool) -> str:
    """Return whose per-example gradients differ from those that PyTorch computes for each example by itself.

    Args:
        network: the network, in training mode; it is left as it was, its gradients aside.
        x: a batch of at least three inputs (b, …), numbers or codes.
        ghost: whether ghost clipping is used, which computes norms alone.

    Returns:
        The name of a parameter, "the norm" with ``ghost``; "" if nothing differs, or if the network draws random
        numbers in its trained layers, so that nothing can be compared.

    Raises:
        RunError: if Opacus raises an error, or has no gradient of a parameter.
    """
    with _without_draws(network):
        if not torch.equal(_outputs(network, x, "one"), _outputs(network, x, "another")):
            return ""
        for inputs in (x, _uneven(x)):
            if found := _differing(network, inputs, ghost=ghost):
                return found
    return ""


def _differing(network: nn.Module, x: Tensor, *, ghost: bool) -> str:
    """Return what differs for one batch of inputs."""
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    shape = _outputs(network, x, "one").shape
    weights = torch.randn(shape, generator=torch_generator(0, "alone")).to(x.device)
    alone = [
        torch.autograd.grad((network(x[i : i + 1]) * weights[i]).sum(), [*trained.values()], materialize_grads=True)
        for i in range(len(x))
    ]
    right = {name: torch.stack(each) for name, each in zip(trained, zip(*alone, strict=True), strict=True)}
    private = PrivateGradients(network, 0.0, 1.0, 1.0, len(x), ghost=ghost)
    try:
        rows = torch.arange(len(x), device=x.device)
        private.backward(lambda _: (private.model(x) * weights).flatten(1).sum(dim=1), rows)
    except RunError:
        raise
    except Exception as error:  # Opacus raises many kinds of errors about layers that it does not know
        raise RunError(f"Opacus fails on it: {type(error).__name__}: {error}") from error
    else:
        unused = set() if ghost else private.idle()
        if idle := [name for name, parameter in trained.items() if parameter in unused]:
            raise RunError(f"'{idle[0]}' has no part in its outputs, and examples have no gradients of it")
        measured = private.norms()
        if measured is not None:
            norms = torch.stack([gradient.flatten(1).square().sum(dim=1) for gradient in right.values()]).sum(dim=0)
            right = {"the norm": norms.sqrt()}
            found = {"the norm": measured}
        else:
            found = {name: parameter.grad_sample for name, parameter in trained.items()}  # type: ignore[attr-defined]
    finally:
        private.end()
    largest = max(float(gradient.abs().max()) for gradient in right.values())
    wrong = (name for name in right if float((found[name] - right[name]).abs().max()) > _TOLERANCE * largest)
    return next(wrong, "")


def _uneven(x: Tensor) -> Tensor:
    """Return inputs that end in zeros, sequences of different lengths in no order, and begin with a repeated entry."""
    x = x.clone()
    if x.dim() < 2 or x.shape[1] < 2:
        return x
    x[:, 1] = x[:, 0]
    for row, kept in enumerate((3, 1, 2)):
        x[row, -(-x.shape[1] * kept // 3) :] = 0
    return x


def _outputs(network: nn.Module, x: Tensor, draws: str) -> Tensor:
    with torch.no_grad(), torch_draws(0, draws):
        outputs: Tensor = network(x)
        return outputs


@contextmanager
def _without_draws(network: nn.Module) -> Iterator[None]:
    """Context in which modules without trained parameters of their own are in evaluation mode, and drop nothing."""
    before = [(module, module.training) for module in network.modules()]
    try:
        for module, training in before:
            module.training = training and any(
                parameter.requires_grad for parameter in module.parameters(recurse=False)
            )
        yield
    finally:
        for module, training in before:
            module.training = training
