"""A network called with other tensors than its own, as a function of these."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call


def called(network: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs of ``network`` for inputs ``x`` with ``tensors`` in the places of its own; differentiable.

    As ``torch.func.functional_call``, which does not put back the tensors of a module that has several names, as those
    of adapters have.

    Args:
        network: the network; it is left unchanged.
        tensors: parameters and buffers, by one of their names each; tied ones have one value.
        x: the inputs.
    """
    places: dict[int, list[str]] = {}  # of each tensor, one for each module that has it
    named: dict[str, Tensor] = {}
    for path, module in network.named_modules(remove_duplicate=False):
        for name, own in (*module._parameters.items(), *module._buffers.items()):
            if own is not None:
                named[f"{path}.{name}".removeprefix(".")] = own
    for path, module in network.named_modules():
        for name, own in (*module._parameters.items(), *module._buffers.items()):
            if own is not None:
                places.setdefault(id(own), []).append(f"{path}.{name}".removeprefix("."))
    placed = {place: tensor for name, tensor in tensors.items() for place in places[id(named[name])]}
    found: Tensor = functional_call(network, placed, (x,), tie_weights=False)
    return found
