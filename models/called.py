"""A network called with other tensors than its own, as a function of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

Function = Callable[[Sequence[Tensor], Tensor], Tensor]
"""A network as a function of tensors and inputs; differentiable in both."""


def as_function(network: nn.Module, names: Iterable[str]) -> Function:
    """Return ``network`` as a function of some of its parameters and buffers, and of inputs; it is left unchanged.

    As ``torch.func.functional_call``, which looks for the names in each call, and does not put back the tensors of a
    module that has several names, as those of adapters have. Modules must not be added or taken away as long as the
    function is used.

    Args:
        network: the network.
        names: of the parameters and buffers, in the function's order, by one of their names each; tied ones have one
            value.
    """
    stores: dict[int, list[tuple[dict[str, Any], str]]] = {}  # of each tensor, one for each module with it
    found: dict[str, int] = {}
    seen: set[int] = set()
    for path, module in network.named_modules(remove_duplicate=False):
        for store in (module._parameters, module._buffers):
            for name, own in store.items():
                if own is not None:
                    found[f"{path}.{name}".removeprefix(".")] = id(own)
                    if id(module) not in seen:
                        stores.setdefault(id(own), []).append((store, name))
        seen.add(id(module))
    places = [stores[found[name]] for name in names]

    def function(tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        own = [[store[name] for store, name in each] for each in places]
        try:
            for each, tensor in zip(places, tensors, strict=True):
                for store, name in each:
                    store[name] = tensor
            result: Tensor = network(x)
        finally:
            for each, before in zip(places, own, strict=True):
                for (store, name), tensor in zip(each, before, strict=True):
                    store[name] = tensor
        return result

    return function
