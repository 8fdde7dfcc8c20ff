"""PeFLL and pFedHN: the three exchanges against autograd through the whole, what travels, and new clients."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from apps.descriptors import correlations, rank_correlations, write_correlations
from apps.personal import personalise
from clients.export import load_model
from clients.pefll import DESCRIPTOR, PeFLLClient
from clients.state import ClientState
from clients.wire import unpack
from common.errors import ConfigurationError, RunError
from common.settings import Value
from models.embedding import build_embedding
from models.hypernetwork import HyperNetwork
from models.networks import build
from models.parameters import Arrays, exchanged, get_arrays, num_bytes
from partitions.clientdata import ClientData, Examples, simulated
from partitions.devices import write_device
from partitions.federation import federate
from strategies.generated import part
from strategies.run_folder import read_checkpoint, read_metrics
from tests.grid import InProcessGrid, run_app
from tests.support import config, settings

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
    @pytest.mark.parametrize("normalize", [False, True])
    def test_three_exchanges_with_one_full_batch_step_are_autograd_through_the_whole(
        self, run: Run, normalize: bool
    ) -> None:
        # With Δθ = −β∇f(θ), the chain rule makes η + mean Δη − 2βλη a gradient step on
        # 1/|P| Σ f_i(h(v(S_i; η_v); η_h)) + λ‖η‖², equation 4.1, at rate β.
        β, λ = 0.5, 0.01
        keys: dict[str, Value] = {
            "rounds": 1, "participation": 1.0, "local-steps": 1, "batch-size": 10_000, "learning-rate": β,
            "momentum": 0.0, "server-learning-rate": 1.0, "pefll.descriptor-batch": 10_000,
            "pefll.normalize": normalize, "pefll.hypernetwork-penalty": λ, "pefll.embedding-penalty": λ,
            "pefll.model-penalty": 0.1,
        }  # fmt: skip
        learned = _everything(run("one", **keys))
        options = settings(**{**SMALL, **keys})
        federation, dataset = federate(options)
        model = build("linear", (1, 8, 8), 10, options.seed)
        φ = build_embedding("linear", (1, 8, 8), 10, 4, options.seed)
        h = HyperNetwork(4, {n: tuple(t.shape) for n, t in exchanged(model).items()}, 3, 8, options.seed)
        parts = [simulated(federation, dataset, i).train for i in range(6)]
        v = torch.stack([φ(data.x, data.y).mean(dim=0) for data in parts])
        if normalize:
            v = (v - float(v.detach().mean())) / float(v.detach().std())
        θ = h(v)
        loss = sum(
            cross_entropy(functional_call(model, own, data.x), data.y) + 0.1 * sum((p**2).sum() for p in own.values())
            for data, own in ((data, {n: t[i] for n, t in θ.items()}) for i, data in enumerate(parts))
        ) / len(parts) + λ * sum((p**2).sum() for p in [*h.parameters(), *φ.parameters()])
        loss.backward()
        for prefix, network in (("hypernetwork/", h), ("", φ)):
            for name, parameter in network.named_parameters():
                expected = (parameter - β * parameter.grad).detach().numpy()
                np.testing.assert_allclose(learned[prefix + name], expected, atol=1e-5, err_msg=name)
                assert np.abs(learned[prefix + name] - parameter.detach().numpy()).max() > 1e-5, f"{name} stood still"

    def test_plain_steps_are_the_averages_times_the_server_learning_rate(self, run: Run) -> None:
        keys = {"rounds": 1, "pefll.hypernetwork-penalty": 0.0, "pefll.embedding-penalty": 0.0}
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
                for record in message.content.values():
                    if isinstance(record, ArrayRecord):
                        arrays |= unpack(record)
                found.append((phases[index], way, arrays))
        return found

    def test_no_message_holds_a_parameter_of_the_hypernetwork(self, run: Run) -> None:
        path = run("traffic", rounds=2)
        h = part(read_checkpoint(path).state, "hypernetwork/")
        sizes = {array.size for array in h.values()}
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
            for array in arrays.values():
                assert not any(np.array_equal(array.ravel(), mine.ravel()) for mine in h.values())
        assert seen == names.keys()
        assert max(sizes) == 640 * 8  # the layer that makes the 640 weights, larger than anything that travels

    def test_bytes_of_a_round_are_those_of_the_thesis(self, run: Run) -> None:
        # 2c(|θ| + |η_v| + |v|) numbers of four bytes.
        record = read_metrics(run("bytes", rounds=3, **{"cohort-size": 4}))[-1]
        θ, η_v = num_bytes(get_arrays(build("linear", (1, 8, 8), 10, 1))), 4 * (10 * 4 + 4)
        assert record["bytes_down"] + record["bytes_up"] == 3 * 2 * 4 * (θ + η_v + 4 * 4)

    def test_nothing_needs_to_be_kept_between_rounds(self, run: Run, tmp_path: Path) -> None:
        whole = run("whole", rounds=4)
        run("broken", rounds=2)
        shutil.rmtree(tmp_path / "broken" / "clients")  # the cohorts of rounds 3 and 4 begin as if never seen
        run("broken", rounds=4, resume="broken")
        _same(whole, tmp_path / "broken")


class TestRuns:
    @pytest.mark.parametrize("method", ["pefll", "pfedhn"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_resume_is_exact(self, method: str, optimizer: str, run: Run, tmp_path: Path) -> None:
        keys = {"method": method, f"{method}.server-optimizer": optimizer, "server-momentum": 0.9}
        whole = run("whole", rounds=4, **keys)
        run("parts", rounds=2, **keys)
        run("parts", rounds=4, resume="parts", **keys)
        _same(whole, tmp_path / "parts")

    @pytest.mark.parametrize("method", ["pefll", "pfedhn"])
    def test_packing_does_not_matter(self, method: str, run: Run) -> None:
        _same(run("one", nodes=1, method=method), run("three", nodes=3, method=method), 1e-5)

    @pytest.mark.parametrize("method", ["pefll", "pfedhn"])
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

    def test_a_client_that_fails_in_the_middle_of_a_round_is_left_out(self, run: Run) -> None:
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

    def test_a_linear_embedding_that_is_trained_tells_clients_apart(self, run: Run, tmp_path: Path) -> None:
        # v is a linear map of the class mix, injective in general: distances agree from the start, if not perfectly.
        keys = {"num-clients": 10, "unseen-fraction": 0.2, "rounds": 2, "evaluate-every": 1}
        path = run("kept", **keys, **{"pefll.keep-descriptors": True, "pefll.descriptor-size": 30})
        table, picture = write_correlations(path, tmp_path / "report")
        found = correlations(path)
        assert [(c.round, c.group) for c in found] == [(r, g) for r in (1, 2) for g in ("seen", "unseen")]
        assert all(c.mean > 0.5 for c in found)
        assert table.read_text().count("\n") == 6
        assert picture.stat().st_size > 1000

    def test_a_run_without_descriptors_says_how_to_get_them(self, run: Run) -> None:
        with pytest.raises(RunError, match=r"pefll\.keep-descriptors = true"):
            correlations(run("none"))


def _client(data: ClientData, tmp_path: Path, **keys: Value) -> PeFLLClient:
    from apps.settings import parse

    options, hyper = parse(config(**{**SMALL, **keys}))
    model = build("linear", (1, 8, 8), 10, 1)
    state = ClientState(tmp_path / "state", 1, [], 0)
    return PeFLLClient("0", data, model, get_arrays(model), state, options, hyper)


def _data(examples: Examples, labeled: bool = True) -> ClientData:
    return ClientData(lambda: examples, lambda: examples, labeled=labeled, device=torch.device("cpu"))


@pytest.fixture
def examples() -> Examples:
    """Return fifty examples of classes 0 to 2."""
    generator = torch.Generator().manual_seed(0)
    return Examples(torch.randn(50, 1, 8, 8, generator=generator), torch.randint(3, (50,), generator=generator))


class TestDescriptor:
    def _describe(self, data: ClientData, tmp_path: Path, batch: int = 0, **keys: Value) -> np.ndarray:
        φ = build_embedding("linear", (1, 8, 8), 10, 4, 1)
        config = {"phase": "describe", "round": 1, "batch": batch, "follows": False}
        return _client(data, tmp_path, **keys).perform(get_arrays(φ), config).arrays[DESCRIPTOR]

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


def test_masked_classes_are_never_predicted(examples: Examples, tmp_path: Path) -> None:
    arrays = get_arrays(build("linear", (1, 8, 8), 10, 1))
    arrays["fc.1.bias"][7] = 100.0  # without a mask, all would be class 7
    for mask, expected in ((False, {7}), (True, {0, 1, 2})):
        client = _client(_data(examples), tmp_path, **{"pefll.mask-labels": mask})
        client.perform(arrays, {"phase": "test", "round": 1})
        assert set(client.predictor(examples.x).argmax(dim=1).tolist()) <= expected


class TestNewClients:
    def test_pfedhn_fits_a_new_vector_and_changes_nothing_else(self, run: Run) -> None:
        # The last round is followed by an evaluation of all clients; without exchanges nothing could be fitted.
        keys = {"method": "pfedhn", "unseen-fraction": 0.34, "num-clients": 6, "participation": 1.0}
        without = run("without", **keys, **{"pfedhn.new-client-exchanges": 0})
        fitted = run("fitted", **keys, **{"pfedhn.new-client-exchanges": 20})
        _same(without, fitted)
        assert {name.split("/")[1] for name in _everything(fitted) if name.startswith("descriptor/")} < set("012345")
        before, after = (read_metrics(path)[-1]["unseen"]["loss"] for path in (without, fitted))
        assert after < before
        seen = [read_metrics(path)[-1]["seen"]["loss"] for path in (without, fitted)]
        assert seen[0] == seen[1]

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


def test_running_statistics_are_refused(run: Run) -> None:
    with pytest.raises(ConfigurationError, match="running statistics"):
        run("resnet", model="resnet18", dataset="cifar10")


def test_a_strategy_without_descriptor_size_takes_a_quarter_of_the_clients(run: Run) -> None:
    path = run("quarter", **{"num-clients": 9, "pefll.descriptor-size": 0})
    assert read_checkpoint(path).arrays["network.fc.1.bias"].shape == (9 // 4,)
