"""Keys that nothing in a run reads are named, wherever they were set; those that are named change nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import florilegium as fl
from florilegium.apps.runs.experiment import offered
from florilegium.apps.runs.recipes import recipe_names
from florilegium.apps.settings.configuration import complete, parse, sections
from florilegium.apps.settings.idle import idle_keys, warn_of_idle_keys
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.strategies.settings.server import TABLES
from tests.grid import run_app
from tests.runs import timeless
from tests.support import CACHE

SMALL: dict[str, Value] = {
    "num-clients": 4, "rounds": 2, "participation": 0.5, "local-steps": 2, "evaluate-every": 1, "partitioner": "iid",
    "cache-dir": str(CACHE),
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ({"fedprox.mu": 1.0, "method": "fedavg"}, {"fedprox.mu"}),
        ({"fedprox.mu": 0.01, "method": "fedprox"}, set()),
        ({"rounds": 1, "privacy.unit": "none"}, set()),
        ({"shard.per-client": 2, "partitioner": "iid"}, {"shard.per-client"}),
        ({"shard.per-client": 2, "partitioner": "shard"}, set()),
        ({"ranks.decay": 0.5, "ranks.tolerance": 0.1, "ranks.levels": "1", "method": "flexlora"},
         {"ranks.decay", "ranks.tolerance"}),
        ({"ranks.decay": 0.5, "ranks.tolerance": 0.1, "method": "hlora"}, {"ranks.decay"}),
        ({"ranks.decay": 0.5, "ranks.sparsity": False, "ranks.penalty": 0.1, "method": "hetlora"}, set()),
        ({"kmeans.local-k": 3, "kmeans.margin": 1.0, "kmeans.k": 3, "method": "k-fed", "model": "centers"},
         {"kmeans.margin"}),
        ({"adapter.rank": 4, "method": "fedit"}, set()),  # which sets adapter.kind itself
        ({"adapter.rank": 4, "adapter.kind": "head"}, {"adapter.rank"}),
        ({"compression.bits": 4, "compression.share": 0.1, "compression.scheme": "quantise"}, {"compression.share"}),
        ({"balanced": True, "partitioner": "dirichlet", "dirichlet-over": "classes"}, {"balanced"}),
        ({"balanced": True, "partitioner": "dirichlet"}, set()),
        ({"fleet.detection": 5.0}, {"fleet.detection"}),
        ({"fleet.detection": 5.0, "fleet.dropout": 0.1}, set()),
        ({"fleet.bandwidth-sigma": 1.0, "fleet.upload": 8.0}, set()),
        ({"secure-range": 4.0}, {"secure-range"}),
        ({"secure-range": 4.0, "secure-aggregation": True}, set()),
        ({"momentum": 0.9, "optimizer": "adam"}, {"momentum"}),
        ({"learning-rate": 0.9, "method": "optimal", "model": "centers"}, {"learning-rate"}),
        ({"learning-rate": 0.9, "weight-decay": 0.1, "method": "glm"}, {"learning-rate", "weight-decay"}),
        ({"optimizer": "adam", "method": "ppfe-linear"}, {"optimizer"}),
        ({"tracker-project": "a"}, {"tracker-project"}),
        ({"no-such-key": 1}, set()),  # an error of its own
    ],
)  # fmt: skip
def test_keys_that_nothing_reads(given: dict[str, Value], idle: set[str]) -> None:
    assert idle_keys(given).keys() == idle


def _names(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage().partition(": no effect, ") for record in caplog.records]
    return [key for keys, separator, _ in found if separator for key in keys.split(", ")]


@pytest.mark.parametrize(
    ("named", "wanted", "recipe", "idle"),
    [
        (["fedprox.mu"], [{"method": "fedavg"}], [], []),  # another run's
        (["fedprox.mu"], [{"method": "fedavg", "fedprox.mu": 1.0}], [], ["fedprox.mu"]),
        (["fedprox.mu"], [{"method": name, "fedprox.mu": 1.0} for name in ("fedavg", "fedprox")], [], []),
        ([], [{"fedprox.mu": 1.0}], [{"fedprox.mu": 1.0}], ["fedprox.mu"]),
        ([], [{"fedprox.mu": 1.0}], [{"fedprox.mu": 1.0}, {"fedprox.mu": 1.0, "method": "fedprox"}], []),
        (["fedprox.mu"], [{"fedprox.mu": 1.0}], [{"fedprox.mu": 1.0, "method": "fedprox"}], ["fedprox.mu"]),
        ([], [{"fedprox.mu": 1.0, "alpha": 1.0}], [], []),  # a resumed run, whose keys are all given again
    ],
)
def test_keys_are_judged_over_all_runs_and_those_of_a_recipe_over_what_it_offers(
    named: list[str], wanted: list[dict[str, Value]], recipe: list[dict[str, Value]], idle: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    warn_of_idle_keys(named, wanted, recipe)
    assert _names(caplog) == idle


def test_the_reason_is_said_once_for_all_keys(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Value] = {"buffer.size": 5, "buffer.max-staleness": 3, "fedprox.mu": 1.0}
    warn_of_idle_keys([*given], [given])
    assert [record.getMessage() for record in caplog.records] == [
        "buffer.size, buffer.max-staleness: no effect, read only with mode = buffered",
        f"fedprox.mu: no effect, the runs read only the tables {', '.join(sorted(TABLES))}",
    ]


@pytest.mark.parametrize("where", ["recipe", "variant", "extended", "option"])
def test_they_are_named_wherever_they_were_set(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [f"{key} = {json.dumps(value)}" for key, value in SMALL.items()]
    texts = {
        "recipe": [*lines, "fedprox.mu = 0.5"], "variant": [*lines, "[variants.one]", "fedprox.mu = 0.5"],
        "extended": ['extends = "base.toml"'], "option": lines,
    }  # fmt: skip
    (tmp_path / "base.toml").write_text("\n".join(texts["recipe"]))
    (tmp_path / "own.toml").write_text("\n".join(texts[where]))
    keys: dict[str, Any] = {"fedprox": {"mu": 0.5}} if where == "option" else {}
    variant = ":one" if where == "variant" else ""
    with caplog.at_level(logging.WARNING):
        fl.run(f"{tmp_path}/own.toml{variant}", progress=False, runs_dir=str(tmp_path / "runs"), **keys)
    assert _names(caplog) == ["fedprox.mu"]


@pytest.mark.parametrize("name", recipe_names())
def test_the_suites_recipes_have_no_key_that_none_of_their_variants_reads(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    configurations = offered(name)
    warn_of_idle_keys([], configurations, configurations)
    assert not _names(caplog)


def test_another_packages_method_may_read_any_common_key() -> None:
    given: dict[str, Value] = {
        "method": "florilegium.clients.fedavg:FedAvgClient",
        "momentum": 0.9,
        "optimizer": "adam",
    }
    assert not idle_keys(given)
    assert idle_keys({**given, "fedprox.mu": 1.0}).keys() == {"fedprox.mu"}


def _other(name: str, default: Value, annotation: Any) -> Value:
    """Return another value of a key than its default."""
    if choices := [choice for choice in get_args(annotation) if isinstance(choice, str) and choice != default]:
        return choices[0]
    own: dict[str, Value] = {
        "angles": "45", "classes-per-client": "1", "personalisation-ratio": "0.25", "client-column": "writer",
        "mdm-params": "low-1", "tracker-project": "other", "transfer-rows": "label=1", "augment": "crop-flip",
    }  # fmt: skip
    if name in own:
        return own[name]
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else 0.5 * float(default) or 0.125


def _idle_in(base: dict[str, Value]) -> Iterator[tuple[str, Value]]:
    """Yield the keys of all runs that nothing reads in a run with the keys ``base``, with other values."""
    for table, section in sections().items():
        for field in section.model_fields.values() if table in ("", *TABLES) else ():
            name, default = f"{table}.{field.alias}" if table else str(field.alias), field.default
            if name in base or not isinstance(default, bool | int | float | str):
                continue
            if not idle_keys({**base, name: default}):
                continue
            value = _other(name, default, field.annotation)
            try:
                parse(complete({**base, name: value}))
            except ConfigurationError:
                continue  # which names it too
            yield name, value


@pytest.mark.parametrize(
    "base",
    [
        SMALL, {**SMALL, "optimizer": "adam", "server-optimizer": "fedadam", "weighting": "uniform"},
        {**SMALL, "mode": "buffered", "buffer.size": 2, "fleet.speed": 50.0, "fleet.download": 8.0},
        {**SMALL, "partitioner": "dirichlet", "dirichlet-over": "classes", "compression.scheme": "top-k"},
        {**SMALL, "rounds": 1, "method": "k-fed", "model": "centers", "kmeans.privacy-unit": "none",
         "kmeans.radius": 1.0, "kmeans.reveal-rows": True},
        {**SMALL, "method": "mdm", "evaluate-every": 0, "mdm.components": "1"},
    ],
    ids=["fedavg", "adaptive", "buffered", "compressed", "clustering", "histograms"],
)  # fmt: skip
def test_what_is_named_changes_nothing(base: dict[str, Value], tmp_path: Path) -> None:
    idle = dict(_idle_in(base))
    assert len(idle) > 20
    for name, keys in (("without", base), ("with", {**base, **idle})):
        run_app(complete({**keys, "runs-dir": str(tmp_path), "run-name": name}))
    assert timeless(tmp_path / "without") == timeless(tmp_path / "with")
