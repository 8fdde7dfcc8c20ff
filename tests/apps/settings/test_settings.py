"""The run configuration: what is accepted, and how mistakes are named."""

from __future__ import annotations

import pytest

from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import defaults, parse
from florilegium.clients.core.base import BaseClient
from florilegium.common.errors import ConfigurationError
from florilegium.common.references import resolve
from florilegium.strategies.core.cohort import CohortStrategy
from tests.support import config


class TestSuccess:
    def test_defaults_are_complete_and_valid(self) -> None:
        settings, hyper = parse(defaults())
        assert settings.method == "fedavg"
        assert hyper.model_dump() == {}

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_has_its_two_halves_and_its_defaults(self, method: str) -> None:
        dataset, model = ("digits", "centers" if METHODS[method].task == "clustering" else "mlp")
        _, hyper = parse(config(method=method, dataset=dataset, model=model))
        entry = METHODS[method]
        assert type(hyper) is entry.hyper() is resolve(entry.keys)
        assert issubclass(entry.strategy_class(), CohortStrategy)
        assert issubclass(entry.client_class(), BaseClient)
        assert entry.references == (entry.strategy, entry.client, entry.keys)
        for reference, found in ((entry.strategy, entry.strategy_class()), (entry.client, entry.client_class())):
            assert reference == f"{found.__module__}:{found.__qualname__}"

    @pytest.mark.parametrize(
        ("method", "epochs", "said"),
        [
            ("fedavg", 0, ""), ("fedavg", 5, ""), ("fedbabu", 5, ""), ("fedbabu", 0, "is meant to be tuned"),
            ("per-fedavg", 0, "is meant to be tuned"), ("flowdup", 0, ""), ("flowdup", 5, "has no effect"),
            ("server-lloyds", 5, "has no effect"),
        ],
    )  # fmt: skip
    def test_what_finetuning_is_to_a_method_is_said(self, method: str, epochs: int, said: str) -> None:
        advice = METHODS[method].client_class().finetuning_advice(epochs)
        assert said in advice
        assert bool(said) == bool(advice)

    def test_an_integer_does_for_a_number(self) -> None:
        assert parse(config(alpha=1))[0].alpha == 1.0

    def test_classes_per_client_is_a_number_or_a_range(self) -> None:
        assert parse(config(**{"classes-per-client": 2}))[0].classes_per_client == 2
        assert parse(config(**{"classes-per-client": "2-3"}))[0].classes_per_client == "2-3"


class TestFailure:
    @pytest.mark.parametrize(
        ("key", "value", "says"),
        [
            ("method", "fedavgg", "method: 'fedavgg' is not a method; did you mean 'fedavg'"),
            ("dataset", "cifar11", "dataset: 'cifar11' is not a dataset; did you mean 'cifar10'"),
            ("partitioner", "clases", "partitioner: 'clases' is not a partitioner; did you mean 'classes'"),
            ("model", "lenett", "model: 'lenett' is not a network; did you mean 'lenet'"),
            ("learnin-rate", 0.1, "learnin-rate: there is no such key; did you mean 'learning-rate'"),
            ("fedprox.nu", 0.1, "fedprox.nu: there is no such key; did you mean 'fedprox.mu'"),
            ("model", "char-lstm", "model: 'char-lstm' does not take the inputs of 'digits'. Allowed: lenet"),
            ("dataset", "shakespeare", "model: 'mlp' does not take the inputs of 'shakespeare'. Allowed: char-lstm"),
            ("rounds", -1, "rounds: input should be greater than or equal to 0 (found: -1)"),
            ("rounds", "ten", "rounds: input should be a valid integer (found: 'ten')"),
            ("rounds", 2.5, "rounds: input should be a valid integer"),
            ("rounds", True, "rounds: input should be a valid integer"),
            ("learning-rate", "fast", "learning-rate: input should be a valid number (found: 'fast')"),
            ("learning-rate", float("nan"), "learning-rate: input should be"),
            ("labeled-fraction", 0.0, "labeled-fraction: input should be greater than 0 (found: 0.0)"),
            ("labeled-fraction", 1.5, "labeled-fraction: input should be less than or equal to 1 (found: 1.5)"),
            ("participation", 0.0, "participation: input should be greater than 0"),
            ("optimizer", "sdg", "optimizer: input should be 'sgd' or 'adam' (found: 'sdg')"),
            ("classes-per-client", "3-2", "classes-per-client: '3-2' is neither a number"),
            ("runs-dir", "runs", "runs-dir: 'runs' is a relative path"),
            ("run-name", "../x", "run-name: string should match pattern"),
            ("device", "gpu", "device: string should match pattern"),
        ],
    )  # fmt: skip
    def test_a_mistake_is_named_with_what_is_allowed(self, key: str, value: object, says: str) -> None:
        with pytest.raises(ConfigurationError) as error:
            parse({**config(), key: value})  # type: ignore[dict-item]
        assert says in str(error.value)

    @pytest.mark.parametrize("key", defaults())
    def test_a_key_that_is_missing_is_said_once(self, key: str) -> None:
        with pytest.raises(ConfigurationError) as error:
            parse({name: value for name, value in defaults().items() if name != key})
        (problem,) = str(error.value).splitlines()[1:]
        assert problem.startswith(f"  {key}: missing, though the code declares it")

    def test_all_mistakes_are_named_at_once(self) -> None:
        with pytest.raises(ConfigurationError) as error:
            parse(config(rounds=-1, alpha=-1.0, method="nope"))
        assert all(key in str(error.value) for key in ("rounds:", "alpha:", "method:"))

    def test_a_methods_own_keys_are_checked(self) -> None:
        with pytest.raises(ConfigurationError, match=r"fedprox\.mu: input should be greater than or equal to 0"):
            parse(config(method="fedprox", **{"fedprox.mu": -1.0}))
