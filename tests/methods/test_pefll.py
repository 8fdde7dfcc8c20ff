"""PeFLL and pFedHN: the three exchanges against autograd through the whole, what travels, and new clients."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from flwr.app import Message
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from florilegium.apps.runs.personal import personalise
from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.base import Answer
from florilegium.clients.core.export import load_model
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Work, unpack
from florilegium.clients.families.generated import GeneratedClient
from florilegium.clients.pefll import DESCRIPTOR, PeFLLClient
from florilegium.common.errors import ConfigurationError, DataError, RunError
from florilegium.common.seeds import torch_generator
from florilegium.common.settings import Value
from florilegium.models.embedding import build_embedding
from florilegium.models.hypernetwork import HyperNetwork
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, exchanged, get_arrays, part, set_arrays
from florilegium.partitions.clientdata import ClientData, Examples, simulated
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.research.studies.descriptors import correlations, rank_correlations, write_correlations
from florilegium.strategies.families import generated
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import RunFolder, read_checkpoint
from tests.grid import InProcessGrid, run_app
from tests.partitions.made import make, write
from tests.support import config, mostly_long, perform, settings

Run = Callable[..., Path]
SMALL: dict[str, Value] = {
    "method": "pefll",
    "model": "linear",
    "num-clients": 6,
    "rounds": 2,
    "evaluate-every": 0,
    "participation": 0.5,
    "local-steps": 3,
    "batch-size": 16,
    "server-learning-rate": 0.1,
    "pefll.hidden-width": 8,
    "pefll.descriptor-size": 4,
    "pfedhn.hidden-width": 8,
    "pfedhn.descriptor-size": 4,
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs the app under a name, and returns the run's folder: ``tmp_path / name``."""

    def start(name: str, nodes: int = 2, **keys: Any) -> Path:
        intercept = keys.pop("intercept", None)
        names = {} if "resume" in keys else {"run-name": name}
        start.grid = run_app(  # type: ignore[attr-defined]
            config(**{**SMALL, **keys, **names, "runs-dir": str(tmp_path)}), nodes, intercept=intercept
        )
        return tmp_path / name

    return start


def _everything(path: Path) -> Arrays:
    """Return all arrays that a run has learned: of the model and of the server."""
    checkpoint = read_checkpoint(path)
    return checkpoint.arrays | checkpoint.state


def _same(one: Path, other: Path, tolerance: float = 0.0) -> None:
    first, second = _everything(one), _everything(other)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], atol=tolerance, rtol=0, err_msg=name)


class TestUpdate:
    @pytest.mark.parametrize("normalize", ["none", "together", "each"])
    def test_three_exchanges_with_one_full_batch_step_are_autograd_through_the_whole(
        self, run: Run, normalize: str
    ) -> None:
        # With Δθ = −β∇f(θ), the chain rule makes η + mean Δη − 2βλη a gradient step on
        # 1/|P| Σ f_i(h(v(S_i; η_v); η_h)) + λ‖η‖², equation 4.1, at rate β.
        β, λ = 0.5, 0.01
        keys: dict[str, Value] = {
            "rounds": 2, "participation": 1.0, "local-steps": 1, "batch-size": 10_000, "learning-rate": β,
            "learning-rate-decay": 0.5, "decay-rounds": 1,
            "momentum": 0.0, "server-learning-rate": 1.0, "pefll.descriptor-batch": 10_000,
            "pefll.normalize": normalize, "pefll.hypernetwork-penalty": λ, "pefll.embedding-penalty": λ,
            "pefll.model-penalty": 0.1, "pefll.server-max-grad-norm": 0.0,
        }  # fmt: skip
        learned = _everything(run("one", **keys))
        options = settings(**{**SMALL, **keys})
        federation, dataset = federate(options)
        model = build("linear", (1, 8, 8), 10, options.seed)
        φ = build_embedding("linear", (1, 8, 8), 10, 4, options.seed)
        h = HyperNetwork(4, {n: tuple(t.shape) for n, t in exchanged(model).items()}, 3, 8, options.seed)
        parts = [simulated(federation, dataset, i).train for i in range(6)]
        parameters = [*h.parameters(), *φ.parameters()]
        first = [parameter.detach().clone() for parameter in parameters]
        m, s = np.float32(0), np.float32(1)
        for number, round_rate in enumerate((β, β / 2)):
            v = torch.stack([φ(data.x, data.y).mean(dim=0) for data in parts])
            if normalize != "none" and number == 0:
                axis = 0 if normalize == "each" else None
                m, s = v.detach().numpy().mean(axis), v.detach().numpy().std(axis)
            θ = h((v - torch.as_tensor(m)) / torch.as_tensor(s))
            loss = sum(
                cross_entropy(functional_call(model, own, d.x), d.y) + 0.1 * sum((p**2).sum() for p in own.values())
                for d, own in ((d, {n: t[i] for n, t in θ.items()}) for i, d in enumerate(parts))
            ) / len(parts) + λ * sum((p**2).sum() for p in parameters)
            with torch.no_grad():
                for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter -= round_rate * slope
        names = [f"hypernetwork/{name}" for name, _ in h.named_parameters()] + [n for n, _ in φ.named_parameters()]
        for name, start, expected in zip(names, first, parameters, strict=True):
            np.testing.assert_allclose(learned[name], expected.detach().numpy(), atol=1e-5, err_msg=name)
            assert np.abs(learned[name] - start.numpy()).max() > 1e-5, f"{name} stood still"

    def test_a_first_cohort_of_one_has_no_deviation_to_divide_by(self, run: Run) -> None:
        path = run("one", **{"cohort-size": 1, "pefll.normalize": "each"})
        assert all(np.isfinite(array).all() for array in _everything(path).values())

    @pytest.mark.parametrize(("key", "factor"), [(0.0, 1.0), (3.0, 3.0)])
    def test_a_round_of_pfedhn_with_one_full_batch_step_is_a_step_of_all_its_networks_and_descriptors(
        self, run: Run, key: float, factor: float
    ) -> None:
        # The hypernetwork goes down the mean of f_i(h(v_i)) at rate β, each descriptor down its own f_i at β times the
        # quotient of its learning rate and the server's.
        β, λ_h, λ_v = 0.5, 0.01, 0.02
        keys: dict[str, Value] = {
            "method": "pfedhn", "participation": 1.0, "local-steps": 1, "batch-size": 10_000, "learning-rate": β,
            "momentum": 0.0, "server-learning-rate": 1.0, "pfedhn.hypernetwork-penalty": λ_h,
            "pfedhn.descriptor-penalty": λ_v, "pfedhn.model-penalty": 0.1, "pfedhn.server-max-grad-norm": 0.0,
            "pfedhn.descriptor-learning-rate": key,
        }  # fmt: skip
        learned = _everything(run("one", **keys))
        options = settings(**{**SMALL, **keys})
        federation, dataset = federate(options)
        model = build("linear", (1, 8, 8), 10, options.seed)
        h = HyperNetwork(4, {n: tuple(t.shape) for n, t in exchanged(model).items()}, 3, 8, options.seed)
        parts = [simulated(federation, dataset, i).train for i in range(6)]
        v = [torch.randn(4, generator=torch_generator(options.seed, "descriptor", str(i))) for i in range(6)]
        v = [descriptor.requires_grad_() for descriptor in v]
        first = [descriptor.detach().clone() for descriptor in v]
        for _ in range(2):
            losses = []
            for data, descriptor in zip(parts, v, strict=True):
                θ = {name: tensor[0] for name, tensor in h(descriptor[None]).items()}
                penalty = 0.1 * sum((tensor**2).sum() for tensor in θ.values())
                losses.append(cross_entropy(functional_call(model, θ, data.x), data.y) + penalty)
            whole = sum(losses) / 6 + λ_h * sum((p**2).sum() for p in h.parameters())
            slopes = torch.autograd.grad(whole, list(h.parameters()), retain_graph=True)
            own = torch.autograd.grad(sum(losses) + λ_v * sum((d**2).sum() for d in v), v)
            with torch.no_grad():
                for parameter, slope in zip(h.parameters(), slopes, strict=True):
                    parameter -= β * slope
                for descriptor, slope in zip(v, own, strict=True):
                    descriptor -= factor * β * slope
        for name, parameter in h.named_parameters():
            np.testing.assert_allclose(learned[f"hypernetwork/{name}"], parameter.detach(), atol=1e-5, err_msg=name)
        for i, (start, descriptor) in enumerate(zip(first, v, strict=True)):
            np.testing.assert_allclose(learned[f"descriptor/{i}"], descriptor.detach(), atol=1e-5)
            assert (descriptor - start).abs().max() > 1e-3

    def test_plain_steps_are_the_averages_times_the_server_learning_rate(self, run: Run) -> None:
        keys = {
            "rounds": 1, "pefll.hypernetwork-penalty": 0.0, "pefll.embedding-penalty": 0.0,
            "pefll.server-max-grad-norm": 0.0,
        }  # fmt: skip
        none = _everything(run("none", **keys, **{"server-learning-rate": 1e-12}))
        half = _everything(run("half", **keys, **{"server-learning-rate": 0.25}))
        whole = _everything(run("whole", **keys, **{"server-learning-rate": 0.5}))
        for name, start in none.items():
            np.testing.assert_allclose(whole[name] - start, 2 * (half[name] - start), atol=1e-6)

    def test_the_norm_of_the_update_is_bounded(self, run: Run) -> None:
        keys = {"rounds": 1, "pefll.hypernetwork-penalty": 0.0, "pefll.embedding-penalty": 0.0}
        none = _everything(run("none", **keys, **{"server-learning-rate": 1e-12}))
        moved = _everything(run("moved", **keys, **{"server-learning-rate": 1.0, "pefll.server-max-grad-norm": 1e-3}))
        norm = np.sqrt(sum(((moved[name] - start) ** 2).sum() for name, start in none.items()))
        assert norm == pytest.approx(1e-3, rel=1e-2)


class TestTraffic:
    def _arrays(self, grid: InProcessGrid) -> list[tuple[str, str, Arrays]]:
        """Return phase, direction and arrays of every message."""
        found = []
        phases = {}
        for way, messages in (("down", grid.sent), ("up", grid.received)):
            for index, message in enumerate(messages):
                if message.metadata.message_type.startswith("query"):
                    continue
                if way == "down":
                    phases[index] = str(message.content["config"]["phase"])
                arrays: Arrays = {}
                for name in ("arrays", "scatter"):
                    if name in message.content:
                        arrays |= unpack(message.content[name])  # type: ignore[arg-type]
                found.append((phases[index], way, arrays))
        return found

    def test_no_message_holds_a_parameter_of_the_hypernetwork(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        networks: list[HyperNetwork] = []
        held: set[bytes] = set()  # all that the hypernetwork's parameters have been when a message was sent

        class Watched(HyperNetwork):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                networks.append(self)

        def look(message: Message) -> None:
            held.update(parameter.detach().numpy().tobytes() for parameter in networks[-1].parameters())

        monkeypatch.setattr(generated, "HyperNetwork", Watched)
        run("traffic", rounds=2, intercept=look)
        parameters = list(networks[-1].parameters())
        assert len(held) > 2 * len(parameters)  # it learned
        network, φ = exchanged(build("linear", (1, 8, 8), 10, 1)), build_embedding("linear", (1, 8, 8), 10, 4, 1)
        names = {
            ("describe", "down"): set(exchanged(φ)), ("describe", "up"): {DESCRIPTOR},
            ("adapt", "down"): set(network), ("adapt", "up"): set(network),
            ("embed", "down"): {DESCRIPTOR}, ("embed", "up"): set(exchanged(φ)),
            ("test", "down"): set(network), ("test", "up"): set(),
        }  # fmt: skip
        seen = set()
        for phase, way, arrays in self._arrays(run.grid):  # type: ignore[attr-defined]
            assert set(arrays) == names[phase, way]
            seen.add((phase, way))
            assert not held & {array.astype(np.float32).tobytes() for array in arrays.values()}  # sums are float64
        assert seen == names.keys()
        # The layer that makes the 640 weights is larger than anything that travels.
        assert max(parameter.numel() for parameter in parameters) == 640 * 8

    def test_numbers_in_a_round_are_those_of_the_thesis(self, run: Run) -> None:
        # 2c(|θ| + |η_v| + |v|) in a round of c clients: on the wire, if each has a node of its own; in the record, of
        # four bytes each, whoever hosts them. Evaluation is not in it.
        θ, η_v = get_arrays(build("linear", (1, 8, 8), 10, 1)), 10 * 4 + 4
        expected = 3 * 2 * 4 * (sum(array.size for array in θ.values()) + η_v + 4)
        for nodes in (2, 6):
            record = read_metrics(run(f"nodes-{nodes}", nodes=nodes, rounds=3, **{"cohort-size": 4}))[-1]
            assert record["bytes_down"] + record["bytes_up"] == 4 * expected
        sizes: dict[str, list[int]] = {"describe": [], "adapt": [], "embed": []}
        for phase, _, arrays in self._arrays(run.grid):  # type: ignore[attr-defined]
            if phase in sizes:
                sizes[phase].append(sum(array.size for array in arrays.values()))
        assert [len(found) for found in sizes.values()] == [2 * (3 * 4 + 6), 2 * 3 * 4, 2 * 3 * 4]
        tested = 6 * (η_v + 4)  # the descriptors before the tests
        assert sum(sum(found) for found in sizes.values()) - tested == expected

    def test_nothing_needs_to_be_kept_between_rounds(self, run: Run, tmp_path: Path) -> None:
        whole = run("whole", rounds=4)
        run("broken", rounds=2)
        shutil.rmtree(tmp_path / "broken" / "clients")  # the cohorts of rounds 3 and 4 begin as if never seen
        run("broken", rounds=4, resume="broken")
        _same(whole, tmp_path / "broken")


def _check_long(path: Path, reason: str) -> None:
    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text("utf-8").splitlines()]
    assert {(line["client"], line["phase"]) for line in lines} == {("1", "adapt")}
    assert all(reason in line["reason"] for line in lines)


class TestRuns:
    @pytest.mark.parametrize("method", ["pefll", "pfedhn"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_resume_is_exact(self, method: str, optimizer: str, run: Run, tmp_path: Path) -> None:
        keys: dict[str, Value] = {"method": method, "server-optimizer": optimizer, "server-momentum": 0.9}
        keys["pefll.normalize"] = "each" if optimizer == "adam" else "together"
        whole = run("whole", rounds=4, **keys)
        run("parts", rounds=2, **keys)
        run("parts", rounds=4, resume="parts", **keys)
        _same(whole, tmp_path / "parts")

    @pytest.mark.parametrize("method", ["pefll", "pfedhn"])
    def test_packing_does_not_matter(self, method: str, run: Run) -> None:
        _same(run("one", nodes=1, method=method), run("three", nodes=3, method=method), 1e-5)

    @pytest.mark.parametrize("method", ["pefll", pytest.param("pfedhn", marks=pytest.mark.long)])
    def test_seen_and_unseen_clients_are_served(self, method: str, run: Run) -> None:
        # Chance is 10 %. Over seeds 1 to 5: PeFLL 0.93 to 0.99 and 0.84 to 0.99, pFedHN alike.
        keys = {
            "method": method, "model": "mlp", "num-clients": 10, "unseen-fraction": 0.2, "cohort-size": 4, "rounds": 40,
            "local-steps": 20, "learning-rate": 0.02, "batch-size": 32, f"{method}.hidden-width": 50,
            f"{method}.server-max-grad-norm": 50.0,
        }  # fmt: skip
        record = read_metrics(run("served", **keys))[-1]
        assert record["seen"]["accuracy"] > 0.8
        assert record["unseen"]["accuracy"] > 0.5

    @pytest.mark.long
    def test_the_default_keys_learn(self, tmp_path: Path) -> None:
        # Chance is 10 %. Over seeds 1 to 5: 0.48 to 0.77 for seen, 0.40 to 0.71 for unseen clients.
        keys: dict[str, Value] = {
            "method": "pefll",
            "rounds": 10,
            "evaluate-every": 0,
            "unseen-fraction": 0.2,
            "run-name": "defaults",
        }
        run_app(config(**keys, **{"runs-dir": str(tmp_path)}))
        record = read_metrics(tmp_path / "defaults")[-1]
        assert min(record[group]["accuracy"] for group in ("seen", "unseen")) > 0.3

    @pytest.mark.parametrize("phase", ["describe", "adapt", "embed"])
    def test_an_answer_of_another_network_is_left_out(
        self, phase: str, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        original = PeFLLClient.perform

        def perform(client: Any, name: str, arrays: Arrays, arguments: Any) -> Answer:
            answer = original(client, name, arrays, arguments)
            if client.client_id == "0" and name == phase and client.round == 1:
                changed = {f"another.{key}": array for key, array in answer.arrays.items()}
                return Answer(changed, answer.num_examples, answer.metrics)
            return answer

        monkeypatch.setattr(GeneratedClient, "perform", perform)
        path = run("partly", participation=1.0, **{"num-clients": 2})
        assert "client 0 failed and is skipped: unusable reply: its arrays have shapes {'another." in caplog.text
        assert all(np.isfinite(array).all() for array in _everything(path).values())

    def test_a_client_that_fails_in_the_middle_of_a_round_counts_for_nothing(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Failing at the second exchange is the same as failing at the first, where nothing is normalised.
        original = PeFLLClient.perform
        learned = {}
        for fails in ("describe", "adapt", "never"):

            def perform(client: Any, name: str, arrays: Arrays, arguments: Any, fails: str = fails) -> Any:
                if client.client_id == "3" and name == fails:
                    raise RuntimeError("out of order")
                return original(client, name, arrays, arguments)

            monkeypatch.setattr(GeneratedClient, "perform", perform)
            keys = {"participation": 1.0, "rounds": 1, "pefll.normalize": "none"}
            learned[fails] = run(f"fails-{fails}", **keys)
        _same(learned["describe"], learned["adapt"], 1e-6)
        others, all_ = _everything(learned["adapt"]), _everything(learned["never"])
        assert any(not np.allclose(others[name], all_[name], atol=1e-4) for name in all_)

    def test_pfedhn_does_not_keep_the_descriptor_of_a_client_that_failed(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = PeFLLClient.perform

        def perform(client: Any, name: str, arrays: Arrays, arguments: Any) -> Any:
            if client.client_id == "3" and name == "adapt":
                raise RuntimeError("out of order")
            return original(client, name, arrays, arguments)

        monkeypatch.setattr(GeneratedClient, "perform", perform)
        path = run("partly", method="pfedhn", participation=1.0)
        assert {f"descriptor/{i}" for i in (0, 1, 2, 4, 5)} == {n for n in _everything(path) if n[:11] == "descriptor/"}
        clients = (path / "clients.csv").read_text().splitlines()[1:]
        assert [row.split(",")[0] for row in clients] == ["0", "1", "2", "4", "5"]

    def test_of_a_cohort_enough_must_get_to_the_end_of_a_round(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        # Of six clients two fail in each exchange: of each at least half of those asked succeed, of all a third.
        failing = {"adapt": ("0", "1"), "embed": ("2", "3")}
        original = PeFLLClient.perform

        def perform(client: Any, name: str, arrays: Arrays, arguments: Any) -> Any:
            if client.client_id in failing.get(name, ()):
                raise RuntimeError("out of order")
            return original(client, name, arrays, arguments)

        monkeypatch.setattr(GeneratedClient, "perform", perform)
        with pytest.raises(RunError, match="only 2 of 6 clients succeeded"):
            run("few", participation=1.0)

    def test_clients_are_evaluated_in_groups(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = run("whole")
        monkeypatch.setattr(generated, "TESTED_AT_ONCE", 4)
        groups = run("groups")
        # The hypernetwork computes other numbers of clients at once, which may change last digits.
        first, second = (pd.read_csv(path / "clients.csv") for path in (whole, groups))
        pd.testing.assert_frame_equal(first, second, rtol=1e-5)
        original = PeFLLClient.perform

        def perform(client: Any, name: str, arrays: Arrays, arguments: Any) -> Any:
            if client.client_id in ("4", "5") and name == "describe" and not arguments["follows"]:
                raise RuntimeError("out of order")
            return original(client, name, arrays, arguments)

        monkeypatch.setattr(GeneratedClient, "perform", perform)  # the second group is gone altogether
        rows = (run("gone") / "clients.csv").read_text().splitlines()
        assert [row.split(",")[0] for row in rows[1:]] == ["0", "1", "2", "3"]

    @pytest.mark.parametrize("method", mostly_long(["pefll", "pfedhn"], "pefll"))
    def test_devices_learn_what_a_simulation_learns(self, method: str, run: Run, tmp_path: Path) -> None:
        federation, dataset = federate(settings(**SMALL))
        nodes = []
        for i in range(6):
            write_device(federation, dataset, i, tmp_path / f"data{i}")
            state = str(tmp_path / f"state{i}")
            nodes.append({"client-id": str(i), "data-path": str(tmp_path / f"data{i}"), "state-dir": state})
        keys = {"method": method, "participation": 1.0}
        _same(run("simulated", **keys), run("devices", nodes=nodes, **keys), 1e-5)
        assert len(list(tmp_path.glob("state*/devices/*/model.safetensors"))) == 6

    def test_a_client_with_a_long_update_fails_alone(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        descend = PeFLLClient.descend

        def far(client: Any, *args: Any, **options: Any) -> float:
            loss = descend(client, *args, **options)
            if client.client_id == "1" and client.phase == "adapt":
                set_arrays(client.model, {n: a + 100 for n, a in get_arrays(client.model).items()})
            return loss

        monkeypatch.setattr(GeneratedClient, "descend", far)
        path = run("long", nodes=2, participation=1.0, rounds=1, **{"max-update-norm": 100.0})
        _check_long(path, "more than max-update-norm = 100")

    def test_a_device_with_a_long_update_is_left_out(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without max-update-norm the bound follows the norms of the others."""
        original = PeFLLClient.perform

        def perform(client: Any, name: str, arrays: Arrays, arguments: Any) -> Any:
            answer = original(client, name, arrays, arguments)
            if client.client_id == "1" and name == "adapt":
                answer = replace(answer, arrays={n: np.full_like(a, 1e4) for n, a in answer.arrays.items()})
            return answer

        monkeypatch.setattr(GeneratedClient, "perform", perform)
        federation, dataset = federate(settings(**SMALL))
        nodes = []
        for i in range(6):
            write_device(federation, dataset, i, tmp_path / f"data{i}")
            nodes.append({"client-id": str(i), "data-path": str(tmp_path / f"data{i}")})
        _check_long(run("long", nodes=nodes, participation=1.0, rounds=1), "is allowed (max-update-norm)")

    def test_a_device_without_labels_is_served_but_never_trains(self, run: Run, tmp_path: Path) -> None:
        nodes = []
        for i in range(3):
            (tmp_path / f"data{i}").mkdir()
            table = make("mnist", 40, seed=i).table
            table = table.select(["image"]) if i == 2 else table
            pyarrow.parquet.write_table(table, tmp_path / f"data{i}" / "train.parquet")
            state = {"state-dir": str(tmp_path / f"state{i}"), "labeled": i < 2}
            nodes.append({"client-id": f"site{i}", "data-path": str(tmp_path / f"data{i}"), **state})
        keys = {"dataset": "mnist", "num-clients": 3, "participation": 1.0, "pefll.embedding": "cnn-unlabeled"}
        path = run("sites", nodes=nodes, **keys)
        phases: dict[str, set[str]] = {}
        for message in run.grid.sent:  # type: ignore[attr-defined]
            if not message.metadata.message_type.startswith("query"):
                asked = message.content["config"]
                for client in asked["clients"]:
                    phases.setdefault(client, set()).add(str(asked["phase"]))
        assert phases["site2"] == {"describe", "test"}
        assert phases["site0"] == {"describe", "adapt", "embed", "test"}
        (kept,) = tmp_path.glob(f"state2/{path.name}/site2/model.safetensors")
        assert kept.stat().st_size > 0

    def test_a_network_that_was_kept_by_an_earlier_run_is_not_used(self, run: Run, tmp_path: Path) -> None:
        federation, dataset = federate(settings(**SMALL))
        write_device(federation, dataset, 0, tmp_path / "data")
        keys = {"num-clients": 1, "participation": 1.0, "seed": 2, "rounds": 1, "pefll.descriptor-batch": 5}
        learned = []
        for state in ("fresh", "used"):
            node = [{"client-id": "0", "data-path": str(tmp_path / "data"), "state-dir": str(tmp_path / state)}]
            for seed in (1, 2) if state == "used" else (2,):
                path = run("again", nodes=node, **{**keys, "seed": seed})
                learned.append(_everything(path))
                shutil.rmtree(path)
        for name, array in learned[0].items():
            np.testing.assert_array_equal(array, learned[2][name])

    def test_one_number_has_no_deviation(self, run: Run) -> None:
        path = run("one", **{"cohort-size": 1, "pefll.descriptor-size": 1, "participation": 1.0})
        assert all(np.isfinite(array).all() for array in _everything(path).values())

    @pytest.mark.parametrize("method", ["pefll", "pfedhn"])
    def test_a_quarter_of_nothing_is_refused(self, method: str, run: Run) -> None:
        with pytest.raises(ConfigurationError, match="descriptor-size: 0 is a quarter of num-clients"):
            run("none", method=method, **{"num-clients": 0, f"{method}.descriptor-size": 0})

    def test_nonsense_does_not_spread(self, run: Run) -> None:
        def fail(message: Message) -> None:
            config = message.content.get("config", {})
            if config.get("phase") in ("adapt", "embed") and config["round"] == 1:
                scatter = message.content["scatter"]
                for name, array in unpack(scatter).items():  # the first client of each node is sent nonsense
                    array = array.copy()
                    array[0] = np.nan
                    scatter[name] = type(next(iter(scatter.values())))(array)

        path = run("partly", intercept=fail, participation=1.0, **{"min-success": 0.2})
        assert all(np.isfinite(array).all() for array in _everything(path).values())

    def test_a_run_can_begin_where_another_ended(self, run: Run) -> None:
        first = run("first")
        second = run("second", init="first", rounds=1, **{"server-learning-rate": 1e-12})
        for name, array in _everything(first).items():
            if not name.startswith("optimizer/"):
                np.testing.assert_allclose(_everything(second)[name], array, atol=1e-6)

    def test_a_run_cannot_begin_from_something_else(self, run: Run) -> None:
        run("fedavg", method="fedavg")
        with pytest.raises(ConfigurationError, match="other networks on its server"):
            run("second", init="fedavg")

    def test_a_run_cannot_begin_from_one_of_an_earlier_version(self, run: Run) -> None:
        path = run("first")
        checkpoint = read_checkpoint(path)
        del checkpoint.facts["own"]["normalize"]
        RunFolder(path, {}, "").save(checkpoint)
        with pytest.raises(
            RunError, match="run 'first' is of an earlier version, whose checkpoints have no 'normalize'"
        ):
            run("second", init="first")

    @pytest.mark.parametrize(("before", "now"), [("none", "together"), ("together", "each"), ("each", "none")])
    def test_descriptors_of_another_scale_are_refused(self, before: str, now: str, run: Run) -> None:
        run("first", **{"pefll.normalize": before})
        with pytest.raises(ConfigurationError, match=f"pefll.normalize: run 'first' .* set it to '{before}'"):
            run("second", init="first", **{"pefll.normalize": now})


class TestStudies:
    def test_a_finished_run_can_be_evaluated_on_other_clients(self, run: Run) -> None:
        first = run("first", rounds=3)
        again, others = run("again", rounds=0, init="first"), run("others", rounds=0, init="first", seed=2)
        assert read_metrics(again)[-1]["seen"] == read_metrics(first)[-1]["seen"]
        assert read_metrics(others)[-1]["seen"] != read_metrics(first)[-1]["seen"]

    def test_rank_correlations_are_those_of_the_distances(self) -> None:
        rng = np.random.default_rng(0)
        v, π = rng.normal(size=(6, 3)), rng.dirichlet(np.ones(4), size=6)
        for i, found in zip((1, 4), rank_correlations(v, π, np.array([1, 4])), strict=True):
            others = [j for j in range(6) if j != i]
            ranks = [np.argsort(np.argsort([np.sqrt(((a[i] - a[j]) ** 2).sum()) for j in others])) for a in (v, π)]
            assert found == pytest.approx(np.corrcoef(*ranks)[0, 1])  # Spearman's is Pearson's of the ranks

    def test_descriptors_that_are_the_mixes_correlate_perfectly(self) -> None:
        π = np.random.default_rng(0).dirichlet(np.ones(4), size=8)
        np.testing.assert_allclose(rank_correlations(3 * π + 1, π, np.arange(8)), 1)

    def test_a_linear_embedding_tells_clients_apart(self, run: Run, tmp_path: Path) -> None:
        # v is a linear map of the class mix, injective in general: distances agree from the start, if not perfectly.
        keys = {"num-clients": 10, "unseen-fraction": 0.2, "rounds": 2, "evaluate-every": 1}
        path = run("kept", **keys, **{"pefll.keep-descriptors": True, "pefll.descriptor-size": 30})
        text = write_correlations(path, tmp_path / "report")
        found = correlations(path)
        assert [(c.round, c.group) for c in found] == [(r, g) for r in (1, 2) for g in ("seen", "unseen")]
        assert all(c.mean > 0.5 for c in found)
        assert (tmp_path / "report" / "descriptors.md").read_text() == text + "\n"
        assert text.count("\n") == 5
        assert (tmp_path / "report" / "descriptors.png").stat().st_size > 1000

    def test_clients_at_equal_distances_do_not_count(self) -> None:
        v = np.random.default_rng(0).normal(size=(5, 3))
        mixes = np.eye(5)
        mixes[0, 1] = mixes[1, 0] = 0.5  # 0 and 1 are nearer to each other than to the rest, to which all are alike
        assert np.isnan(rank_correlations(v, mixes, np.arange(5))).tolist() == [False, False, False, False, False]
        assert np.isnan(rank_correlations(v, np.eye(5), np.arange(5))).all()

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"num-clients": 2}, "descriptors of 2 clients after round 1; .* if there are 3"),
            ({"partitioner": "classes", "classes-per-client": 1}, "all seen clients are equally far from all others"),
        ],
    )
    def test_what_cannot_be_ranked_is_said(self, keys: dict[str, Value], said: str, run: Run) -> None:
        path = run("kept", rounds=1, **{"pefll.keep-descriptors": True, "pefll.embedding": "linear"}, **keys)
        with pytest.raises(RunError, match=said):
            correlations(path)

    def test_a_run_without_descriptors_says_how_to_get_them(self, run: Run) -> None:
        with pytest.raises(RunError, match=r"pefll\.keep-descriptors = true"):
            correlations(run("none"))


def _client(data: ClientData, tmp_path: Path, round: int = 1, **keys: Value) -> PeFLLClient:
    if keys.get("dataset") == "shakespeare":
        keys["model"] = "char-lstm"
    options, hyper = parse(config(**{**SMALL, **keys}))
    model = build("linear", (1, 8, 8), 10, 1)
    state = ClientState(tmp_path / "state", round, [], 0, "0")
    return PeFLLClient("0", data, model, get_arrays(model), state, options, hyper, Work(round))


def _data(examples: Examples, labeled: bool = True) -> ClientData:
    return ClientData(lambda: examples, lambda: examples, labeled=labeled, simulated=True, device=torch.device("cpu"))


@pytest.fixture
def examples() -> Examples:
    """Return fifty examples of classes 0 to 2."""
    generator = torch.Generator().manual_seed(0)
    return Examples(torch.randn(50, 1, 8, 8, generator=generator), torch.randint(3, (50,), generator=generator))


class TestEmbed:
    @pytest.mark.parametrize(
        ("kind", "dataset", "shape"),
        [
            ("linear", "digits", (1, 8, 8)),
            ("cnn", "mnist", (1, 28, 28)),
            ("cnn-unlabeled", "mnist", (1, 28, 28)),
            ("lstm", "shakespeare", (80,)),
        ],
    )
    def test_it_is_the_gradient_of_what_was_described(
        self, kind: str, dataset: str, shape: tuple[int, ...], tmp_path: Path
    ) -> None:
        # Along its own direction d the derivative of ⟨Δv, v(η)⟩ is ‖Δη‖, here as a difference of descriptors. They
        # are of the same few examples and the η_v that was sent, or the two would not agree.
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(80, (50, *shape), generator=generator) if kind == "lstm" else None
        x = torch.randn(50, *shape, generator=generator) if x is None else x
        data = _data(Examples(x, torch.randint(10, (50,), generator=generator)))
        classes = 80 if kind == "lstm" else 10
        η = get_arrays(build_embedding(kind, shape, classes, 4, 1))
        keys = {"pefll.embedding": kind, "dataset": dataset}
        sizes = {"batch": 8, "size": 4}
        client = _client(data, tmp_path, **keys)
        perform(client, "describe", η, **sizes, follows=True)
        client.state.commit()
        Δv = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
        again = _client(data, tmp_path, **keys)  # as in another process
        Δη = perform(again, "embed", {DESCRIPTOR: Δv}, **sizes).arrays
        assert Δη.keys() == η.keys()
        norm = np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in Δη.values()))
        step = 1e-2
        ends = []
        for sign in (1, -1):
            moved = {name: (array + sign * step * Δη[name] / norm).astype(np.float32) for name, array in η.items()}
            elsewhere = _client(data, tmp_path / "elsewhere", **keys)
            told = perform(elsewhere, "describe", moved, **sizes, follows=False)
            ends.append(float(told.arrays[DESCRIPTOR].astype(np.float64) @ Δv))
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(norm, rel=0.02)

    def test_without_a_describe_in_this_round_there_is_nothing_to_send_back_through(
        self, examples: Examples, tmp_path: Path
    ) -> None:
        client = _client(_data(examples), tmp_path)
        η = get_arrays(build_embedding("linear", (1, 8, 8), 10, 4, 1))
        perform(client, "describe", η, batch=8, size=4, follows=True)
        client.state.commit()
        later = _client(_data(examples), tmp_path, round=2)
        with pytest.raises(RunError, match="embedding network of round 2 is gone"):
            perform(later, "embed", {DESCRIPTOR: np.zeros(4, np.float32)}, round=2, batch=8, size=4)

    def test_every_repetition_has_batches_of_its_own(self, examples: Examples, tmp_path: Path) -> None:
        θ = get_arrays(build("linear", (1, 8, 8), 10, 1))
        client = _client(_data(examples), tmp_path, **{"local-steps": 1})
        first, same, other = (perform(client, "adapt", θ, repetition=r).arrays["fc.1.weight"] for r in (1, 1, 2))
        np.testing.assert_array_equal(first, same)
        assert not np.allclose(first, other)

    def test_labels_that_may_not_be_used_are_not_trained_with(self, examples: Examples, tmp_path: Path) -> None:
        client = _client(_data(examples, labeled=False), tmp_path)
        with pytest.raises(RunError, match="no labels to train with"):
            perform(client, "adapt", get_arrays(build("linear", (1, 8, 8), 10, 1)), repetition=0)


class TestDescriptor:
    def _describe(self, data: ClientData, tmp_path: Path, batch: int = 0, **keys: Value) -> np.ndarray:
        φ = build_embedding("linear", (1, 8, 8), 10, 4, 1)
        client = _client(data, tmp_path, **keys)
        return perform(client, "describe", get_arrays(φ), batch=batch, size=4, follows=False).arrays[DESCRIPTOR]

    def test_the_order_of_examples_does_not_matter(self, examples: Examples, tmp_path: Path) -> None:
        order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
        mixed = Examples(examples.x[order], examples.y[order])
        np.testing.assert_allclose(
            self._describe(_data(examples), tmp_path), self._describe(_data(mixed), tmp_path), atol=1e-6
        )

    def test_a_batch_larger_than_the_data_is_all_of_them(self, examples: Examples, tmp_path: Path) -> None:
        whole = self._describe(_data(examples), tmp_path)
        np.testing.assert_array_equal(self._describe(_data(examples), tmp_path, batch=1000), whole)
        assert not np.allclose(self._describe(_data(examples), tmp_path, batch=5), whole)

    def test_no_examples_no_descriptor(self, tmp_path: Path) -> None:
        none = Examples(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64))
        with pytest.raises(RunError, match="no examples"):
            self._describe(_data(none), tmp_path)

    def test_labels_that_may_not_be_used_are_not(self, examples: Examples, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="needs labels"):
            self._describe(_data(examples, labeled=False), tmp_path)

    def test_the_server_refuses_unlabeled_clients_that_its_embedding_cannot_serve(self, run: Run) -> None:
        with pytest.raises(ConfigurationError, match="cnn-unlabeled"):
            run("unlabeled", **{"labeled-fraction": 0.5})

    def test_the_network_for_text_refuses_tables(self, run: Run) -> None:
        with pytest.raises(ConfigurationError, match="'lstm' reads characters, 'adult' is of the kind 'table'"):
            run("table", **{"dataset": "adult", "model": "mlp", "pefll.embedding": "lstm"})


def test_masked_classes_are_never_predicted(examples: Examples, tmp_path: Path) -> None:
    arrays = get_arrays(build("linear", (1, 8, 8), 10, 1))
    arrays["fc.1.bias"][7] = 100.0  # without a mask, all would be class 7
    for mask, expected in ((False, {7}), (True, {0, 1, 2})):
        client = _client(_data(examples), tmp_path, **{"pefll.mask-labels": mask})
        perform(client, "test", arrays)
        assert set(client.predictor(examples.x).argmax(dim=1).tolist()) <= expected


class TestNewClients:
    def test_pfedhn_does_not_train_with_labels_it_may_not_use(self, run: Run) -> None:
        keys = {"method": "pfedhn", "labeled-fraction": 0.5, "pfedhn.new-client-exchanges": 2}
        path = run("unlabeled", participation=1.0, **keys)
        asked = set()
        for message in run.grid.sent:  # type: ignore[attr-defined]
            if not message.metadata.message_type.startswith("query") and message.content["config"]["phase"] == "adapt":
                asked |= set(message.content["config"]["clients"])
        assert len(asked) == 3
        assert {"seen", "unlabeled"} <= read_metrics(path)[-1].keys()

    def test_descriptors_of_one_federation_are_not_those_of_another(self, run: Run) -> None:
        run("first", method="pfedhn", participation=1.0)
        second = run("second", method="pfedhn", rounds=0, init="first", seed=2)
        assert not any(name.startswith("descriptor/") for name in _everything(second))

    def test_a_client_without_labels_gets_its_model_too(self, run: Run, tmp_path: Path) -> None:
        # Only an embedding that does without labels can do that; it needs images of at least 16×16 pixels.
        write(tmp_path / "data", "mnist", 300, 60)
        keys = {"dataset": "mnist", "data-dir": str(tmp_path / "data"), "pefll.embedding": "cnn-unlabeled"}
        path = run("images", **keys, **{"labeled-fraction": 0.5})
        assert {"seen", "unlabeled"} <= read_metrics(path)[-1].keys()
        (tmp_path / "device").mkdir()
        table = make("mnist", 20).table.select(["image"])
        pyarrow.parquet.write_table(table, tmp_path / "device" / "train.parquet")
        model, _ = load_model(personalise(path, tmp_path / "model", data_path=tmp_path / "device", labeled=False))
        assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
        with pytest.raises(DataError, match="column 'label' is missing"):
            personalise(path, tmp_path / "model", data_path=tmp_path / "device")

    def test_pfedhn_fits_a_new_vector_and_changes_nothing_else(self, run: Run) -> None:
        # The last round is followed by an evaluation of all clients; without exchanges nothing could be fitted.
        keys = {"method": "pfedhn", "unseen-fraction": 0.34, "num-clients": 6, "participation": 1.0}
        without = run("without", **keys, **{"pfedhn.new-client-exchanges": 0})
        fitted = run("fitted", **keys, **{"pfedhn.new-client-exchanges": 20})
        _same(without, fitted)
        assert {name.split("/")[1] for name in _everything(fitted) if name.startswith("descriptor/")} < set("012345")
        [first, last] = [read_metrics(path)[-1] for path in (without, fitted)]
        assert last["unseen"]["loss"] < first["unseen"]["loss"]
        assert [last[way] - first[way] for way in ("bytes_down", "bytes_up")] == [0, 0]  # fitting is no training
        seen = [read_metrics(path)[-1]["seen"]["loss"] for path in (without, fitted)]
        assert seen[0] == seen[1]

    def test_new_clients_that_cannot_be_fitted_are_left_out(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = {"method": "pfedhn", "unseen-fraction": 0.34, "num-clients": 6}
        federation, _ = federate(settings(**{**SMALL, **keys}))
        unseen, original = set(map(str, np.flatnonzero(federation.unseen))), PeFLLClient.perform

        def perform(client: Any, name: str, arrays: Arrays, arguments: Any) -> Any:
            if client.client_id in unseen and name == "adapt":
                raise RuntimeError("out of order")
            return original(client, name, arrays, arguments)

        monkeypatch.setattr(GeneratedClient, "perform", perform)
        path = run("fails", **keys)
        said = (path / "failures.jsonl").read_text(encoding="utf-8").splitlines()
        assert {json.loads(line)["client"] for line in said} == unseen
        assert all("out of order" in line for line in said)
        assert len(unseen) == 2
        assert "seen" in read_metrics(path)[-1]
        assert "unseen" not in read_metrics(path)[-1]

    def test_that_vector_goes_down_the_loss_of_the_new_client(self, run: Run) -> None:
        # With one full-batch step each exchange is a gradient step on f_i(h(v)) by v alone.
        β, factor, exchanges = 0.5, 2.0, 3
        keys: dict[str, Value] = {
            "method": "pfedhn", "local-steps": 1, "batch-size": 10_000, "learning-rate": β, "momentum": 0.0,
            "server-learning-rate": 1.0, "pfedhn.server-max-grad-norm": 0.0, "unseen-fraction": 0.34,
            "pfedhn.descriptor-learning-rate": factor, "pfedhn.new-client-exchanges": exchanges,
        }  # fmt: skip
        path = run("new", **keys)
        options = settings(**{**SMALL, **keys})
        federation, dataset = federate(options)
        model = build("linear", (1, 8, 8), 10, options.seed)
        h = HyperNetwork(4, {n: tuple(t.shape) for n, t in exchanged(model).items()}, 3, 8, options.seed)
        set_arrays(h, part(read_checkpoint(path).state, "hypernetwork/"))

        def loss(v: torch.Tensor, data: Examples) -> torch.Tensor:
            θ = {name: tensor[0] for name, tensor in h(v[None]).items()}
            return cross_entropy(functional_call(model, θ, data.x), data.y)

        losses: dict[int, list[float]] = {0: [], exchanges: []}
        for i in np.flatnonzero(federation.unseen):
            data = simulated(federation, dataset, int(i))
            v = torch.randn(4, generator=torch_generator(options.seed, "descriptor", str(i))).requires_grad_()
            losses[0].append(loss(v, data.test).item())
            for _ in range(exchanges):
                (slope,) = torch.autograd.grad(loss(v, data.train), v)
                v = (v - factor * β * slope).detach().requires_grad_()
            losses[exchanges].append(loss(v, data.test).item())
        found = read_metrics(path)[-1]["unseen"]["loss"]
        assert found == pytest.approx(np.mean(losses[exchanges]), abs=1e-5)
        assert found != pytest.approx(np.mean(losses[0]), abs=1e-3)

    @pytest.mark.parametrize("method", ["pefll", "pfedhn"])
    def test_the_model_of_a_client_can_be_written(self, method: str, run: Run, tmp_path: Path) -> None:
        path = run("exported", method=method, **{"unseen-fraction": 0.34})
        rows = (path / "clients.csv").read_text().splitlines()
        header = rows[0].split(",")
        for row in rows[1:]:
            values = dict(zip(header, row.split(","), strict=True))
            model, _ = load_model(personalise(path, tmp_path / "model", values["client"]))
            options = settings(**{**SMALL, "unseen-fraction": 0.34})
            test = simulated(*federate(options), int(values["client"])).test
            accuracy = (model(test.x).argmax(dim=1) == test.y).float().mean()
            assert float(accuracy) == pytest.approx(float(values["accuracy"]), abs=1e-6)

    @pytest.mark.parametrize("method", ["pefll", "pfedhn", "fedavg"])
    def test_so_can_that_of_a_client_from_elsewhere(self, method: str, run: Run, tmp_path: Path) -> None:
        path = run("elsewhere", method=method)
        federation, dataset = federate(settings(**SMALL))
        write_device(federation, dataset, 0, tmp_path / "device")
        before = set(path.rglob("*"))
        model, card = load_model(personalise(path, tmp_path / "model", data_path=tmp_path / "device"))
        assert card.client == "new"
        assert set(path.rglob("*")) == before
        own, _ = load_model(personalise(path, tmp_path / "own", "0"))
        if method != "pfedhn":  # its client 0 has a descriptor, the new one gets another
            for name, tensor in own.state_dict().items():
                torch.testing.assert_close(model.state_dict()[name], tensor, atol=1e-5, rtol=0)


def test_a_descriptor_has_numbers(run: Run) -> None:
    with pytest.raises(ConfigurationError, match=r"pefll.descriptor-size: .* greater than or equal to 0 \(found: -1\)"):
        run("negative", **{"pefll.descriptor-size": -1})


def test_a_model_without_parameters_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "network_for", lambda *_: torch.nn.Sequential(torch.nn.Flatten()))
    with pytest.raises(ConfigurationError, match="model: 'linear' has no parameters"):
        run("nothing")


def test_running_statistics_are_refused(run: Run) -> None:
    with pytest.raises(ConfigurationError, match="running statistics"):
        run("resnet", model="resnet18", dataset="cifar10")


def test_a_strategy_without_descriptor_size_takes_a_quarter_of_the_clients(run: Run) -> None:
    path = run("quarter", **{"num-clients": 9, "pefll.descriptor-size": 0})
    assert read_checkpoint(path).arrays["network.fc.1.bias"].shape == (9 // 4,)
