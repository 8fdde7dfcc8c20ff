"""What a method is: title, source, and references to its strategy, client and keys.

A method has a client file (``clients/``) and, if it needs server code of its own, a strategy file (``strategies/``);
otherwise it names the strategy that it shares with other methods. References are imported only when used: the command
line imports neither side, and a client process imports no strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from florilegium.common.references import name_of, resolve
from florilegium.common.settings import Section, Value

if TYPE_CHECKING:
    from florilegium.clients.core.base import BaseClient
    from florilegium.strategies.core.cohort import CohortStrategy


@dataclass(frozen=True)
class Method:
    """A method: a client, a strategy, and keys of its own.

    Attributes:
        title, source: a short description, and the paper it comes from.
        strategy, client: its server and client class, or references to them; by default the strategy is FedAvg's.
        keys: the section that declares its own configuration keys, or a reference to it.
        task: what it learns from a dataset: its targets (as its client's ``needs`` allow), clusters, histograms of
            classes, or what its columns hold.
        table: the configuration table of its keys, if several methods share one; "": the method's name or, in another
            package, the client class's name without "Client", in lower case with hyphens.
        descends: whether its clients train by descent, so that the keys of local training count.
        new_clients: what a client is tested with that has never trained, before ``finetune-epochs`` tune it.
        implies: common keys that the method sets itself, by name; another value of them is an error.
        first: keys that a first run sets, where those of :attr:`implies` and the defaults do not go with the method.
    """

    title: str
    source: str
    strategy: str | type[CohortStrategy] = "florilegium.strategies.fedavg:FedAvg"
    client: str | type[BaseClient] = "florilegium.clients.fedavg:FedAvgClient"
    keys: str | type[Section] = "florilegium.common.settings:NoHyper"
    task: Literal["targets", "clustering", "histograms", "columns"] = "targets"
    table: str = ""
    descends: bool = True
    new_clients: str = "the global model"
    implies: Mapping[str, Value] = field(default_factory=dict)
    first: Mapping[str, Value] = field(default_factory=dict)

    def strategy_class(self) -> type[CohortStrategy]:
        """Import and return the strategy class."""
        found: type[CohortStrategy] = resolve(self.strategy) if isinstance(self.strategy, str) else self.strategy
        return found

    def client_class(self) -> type[BaseClient]:
        """Import and return the client class."""
        found: type[BaseClient] = resolve(self.client) if isinstance(self.client, str) else self.client
        return found

    def hyper(self) -> type[Section]:
        """Import and return the section of the method's own keys."""
        found: type[Section] = resolve(self.keys) if isinstance(self.keys, str) else self.keys
        return found

    @property
    def references(self) -> tuple[str, str, str]:
        """References to strategy, client and keys of the method."""
        strategy, client, keys = (
            part if isinstance(part, str) else name_of(part) for part in (self.strategy, self.client, self.keys)
        )
        return strategy, client, keys
