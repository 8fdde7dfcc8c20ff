"""Private clustering: exact limits, sensitivities, the noise that is really added, budgets, resume, devices."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2, chisquare
from sklearn.cluster import KMeans as ScikitKMeans

from florilegium.apps.assembly.parts import assemble, open_folder
from florilegium.apps.engines.one_process import OneProcess, run_here
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.personal import personalise
from florilegium.apps.settings.configuration import parse
from florilegium.clients.clustering.feddp_kmeans import FedDPKMeansClient
from florilegium.clients.clustering.k_fed import KFedClient
from florilegium.clients.clustering.kmeans import KMeansClient
from florilegium.clients.core import phases
from florilegium.clients.core.base import Answer
from florilegium.clients.core.export import load_model, predict
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Reply, Work, unpack
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.partitions.clientdata import CPU, ClientData, Examples, simulated
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.privacy.accounting import Release, multiplier, total
from florilegium.strategies.clustering.bounds import client_bounds
from florilegium.strategies.clustering.kmeans import KMeans
from florilegium.strategies.core.round import Round
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import run_app
from tests.runs import Runs
from tests.support import TASK, config, mostly_long, perform, settings

KEYS: dict[str, Value] = {
    "method": "feddp-kmeans", "model": "centers", "dataset": "gaussian-mixture", "partitioner": "iid",
    "num-clients": 12, "samples-per-client": 200, "server-examples": 200, "server-ood-examples": 100,
    "participation": 1.0, "rounds": 1, "evaluate-every": 1,
}  # fmt: skip
NOTHING = {"kmeans.privacy-unit": "none"}
FAST = {"kmeans.epsilons": "1,1,1,1"}  # no calibration
PRIVATE = [name for name, method in METHODS.items() if method.task == "clustering" and name not in ("k-fed", "optimal")]


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _centers(path: Path) -> np.ndarray:
    return read_checkpoint(path).arrays["centers"]


def _summary(path: Path) -> dict:
    return json.loads((path / "summary.json").read_text())


def _points(**keys: Value) -> np.ndarray:
    options = settings(**{**KEYS, **keys})
    federation, dataset = federate(options)
    parts = [simulated(federation, dataset, i).train.x for i in range(len(federation))]
    return torch.cat(parts).flatten(1).double().numpy()


def _server(tmp_path: Path, **keys: Value) -> tuple[KMeans, OneProcess]:
    """Return a strategy with its clients in this process, ready to be asked for sums."""
    full = config(**{**KEYS, **keys, "runs-dir": str(tmp_path), "run-name": "asked"})
    assembly = assemble(full, one_thread=True)
    grid = OneProcess(assembly.host(assembly.simulated_clients()), assembly.code)
    strategy = assembly.strategy(open_folder(tmp_path / "asked", full, assembly.settings.method))
    assert isinstance(strategy, KMeans)
    strategy.federation.roster.wait(grid, 0.0)
    return strategy, grid


def _client(points: np.ndarray, kind: type[KMeansClient] = FedDPKMeansClient, **keys: Value) -> KMeansClient:
    """Return a client that holds ``points``."""
    options, hyper = parse(config(**{**KEYS, **keys}))
    examples = Examples(torch.from_numpy(points), torch.zeros(len(points), dtype=torch.int64))
    data = ClientData(lambda: examples, lambda: examples, labeled=True, simulated=True, device=CPU)
    model = build("centers", (points.shape[1],), 10, 1)
    state = ClientState(Path("/nonexistent"), 1, [], 0, "0")
    return kind("0", data, model, get_arrays(model), state, options, hyper, Work(1))


class TestExactLimits:
    def test_server_data_equal_to_client_data_is_weighted_k_means(self, run: Runs, tmp_path: Path) -> None:
        # Every client point is its own nearest server point, so that weights count copies (digits have none).
        whole = {"dataset": "digits", "num-clients": 1, "partitioner": "iid", "samples-per-client": 0}
        one, dataset = federate(settings(**{**KEYS, **whole, "server-examples": 0, "server-ood-examples": 0}))
        write_device(one, dataset, 0, tmp_path / "all")
        keys = {**whole, **NOTHING, "server-examples": 0, "server-ood-examples": 0, "kmeans.restarts": 20,
                "kmeans.weight-threshold": 0.0,
                "num-clients": 3, "server-data": str(tmp_path / "all" / "train.parquet")}  # fmt: skip
        path = run("same", **keys)
        x = simulated(one, dataset, 0).train.x.flatten(1).double().numpy()
        state = read_checkpoint(path).state
        np.testing.assert_array_equal(state["weights"].sum(), len(x))
        distinct, copies = np.unique(x, axis=0, return_counts=True)
        kept = state["weights"] > 0
        assert sorted(state["weights"][kept].tolist()) == sorted(copies.tolist())
        # The thesis' steps with NumPy and scikit-learn on all points in one place.
        basis = np.linalg.svd(x, full_matrices=False)[2][:10].T
        found = ScikitKMeans(10, n_init=20, random_state=1).fit(distinct @ basis, sample_weight=copies)
        labels = found.predict(x @ basis)
        expected = np.stack([x[labels == j].mean(axis=0) for j in range(10)])
        reached = ((x[:, None] - _centers(path)[None]) ** 2).sum(axis=2).min(axis=1).mean()
        best = ((x[:, None] - expected[None]) ** 2).sum(axis=2).min(axis=1).mean()
        assert reached == pytest.approx(best, rel=0.01)  # k-means++ draws differ
        assert _summary(path)["kmeans"]["cost"] == pytest.approx(reached, rel=1e-6)

    def test_step_three_is_the_mean_of_the_projected_clusters(self, run: Runs) -> None:
        path = run("three", **NOTHING)
        x, state = _points(), read_checkpoint(path).state
        basis = np.linalg.svd(x, full_matrices=False)[2][:10].T
        # The subspace is the same, its basis only up to signs: distances in it agree.
        sizes = np.linalg.norm(state["points"], axis=1)
        assert sizes.max() <= 11.5
        projector = basis @ basis.T
        centers = _centers(path)
        labels = (((x @ projector)[:, None] - (centers @ projector)[None]) ** 2).sum(axis=2).argmin(axis=1)
        moved = np.stack([x[labels == j].mean(axis=0) for j in range(10)])
        assert np.abs(moved - centers).max() < 0.1  # a fixed point, but for the points that change sides

    @pytest.mark.parametrize("steps", [1, 2])
    def test_lloyds_steps_are_those_of_the_pooled_points(self, run: Runs, steps: int) -> None:
        start = run("start", method="server-lloyds", **NOTHING)
        path = run("steps", method="server-lloyds", rounds=steps + 1, **NOTHING)
        # An empty cluster keeps its centre.
        x, expected = _points(), _centers(start)
        for _ in range(steps):
            labels = ((x[:, None] - expected[None]) ** 2).sum(axis=2).argmin(axis=1)
            expected = np.stack(
                [x[labels == j].mean(axis=0) if (labels == j).any() else expected[j] for j in range(10)]
            )
        np.testing.assert_allclose(_centers(path), expected, atol=1e-8)

    def test_any_packing_gives_the_same(self, run: Runs) -> None:
        one, three = run("one", nodes=1, **FAST), run("three", nodes=3, **FAST)
        np.testing.assert_allclose(_centers(one), _centers(three), atol=1e-9)
        again = run("again", nodes=3, **FAST)
        np.testing.assert_array_equal(_centers(three), _centers(again))

    def test_a_large_epsilon_approaches_no_privacy(self, run: Runs) -> None:
        free = _summary(run("free", **NOTHING))["kmeans"]["cost"]
        rich = _summary(run("rich", **{"kmeans.epsilons": "20,20,20,20"}))["kmeans"]["cost"]
        poor = _summary(run("poor", **{"kmeans.epsilons": "0.05,0.05,0.05,0.05"}))["kmeans"]["cost"]
        assert rich == pytest.approx(free, rel=2e-3)
        assert poor > free * 1.01

    def test_optimal_is_scikit_learns_clustering_and_beats_all(self, run: Runs) -> None:
        path = run("optimal", method="optimal")
        x = _points()
        best = ScikitKMeans(10, n_init=10, random_state=5).fit(x)
        assert _summary(path)["kmeans"]["cost"] == pytest.approx(best.inertia_ / len(x), rel=1e-3)
        for method in ("k-fed", "feddp-kmeans", "server-lloyds", "server-kmeans++"):
            other = _summary(run(method.replace("+", "p"), method=method, **NOTHING))["kmeans"]["cost"]
            assert other >= best.inertia_ / len(x) - 1e-6

    def test_sphere_packing_stays_among_the_points(self, tmp_path: Path) -> None:
        """The cube reaches as far as the largest coordinate; a cube of the largest norm leaves most centres empty."""
        server, _ = _server(tmp_path, method="sphere-packing", rounds=2, **NOTHING)
        centers = server.initialise(None)  # type: ignore[arg-type]
        largest = np.abs(server._server_points).max()
        assert 0.95 * largest < np.abs(centers).max() <= largest
        assert len({*((_points()[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)}) >= 9

    def test_server_lloyds_clusters_all_of_the_servers_points(self, tmp_path: Path) -> None:
        """As well as scikit-learn's k-means of these, and at a fixed point of Lloyd's algorithm on them."""
        server, _ = _server(tmp_path, method="server-lloyds", rounds=2, **NOTHING)
        points, centers = server.points, server.initialise(None)  # type: ignore[arg-type]
        assert len(points) == 300
        squares = ((points[:, None] - centers) ** 2).sum(axis=2)
        best = ScikitKMeans(10, n_init=20, random_state=7).fit(points).inertia_
        assert squares.min(axis=1).sum() < 1.01 * best
        labels = squares.argmin(axis=1)
        np.testing.assert_allclose(centers, [points[labels == j].mean(axis=0) for j in range(10)], atol=1e-6)

    def test_server_kmeans_pp_draws_points_far_from_each_other(self, tmp_path: Path) -> None:
        """Of each of four far groups one point, although the first 60 points are of one group; another seed, others."""
        drawn = []
        for seed in (1, 2):
            server, _ = _server(tmp_path / str(seed), method="server-kmeans++", rounds=2, seed=seed, **NOTHING,
                                **{"kmeans.k": 4})  # fmt: skip
            groups = np.repeat(np.arange(4), [60, 20, 20, 20])
            points = 1e4 * np.eye(5)[groups] + np.random.default_rng(1).normal(size=(120, 5))
            server.__dict__["points"] = points
            centers = server.initialise(None)  # type: ignore[arg-type]
            rows = [int(np.flatnonzero((points == center).all(axis=1))[0]) for center in centers]
            assert sorted(groups[rows]) == [0, 1, 2, 3]
            drawn.append(rows)
        assert drawn[0] != drawn[1]

    def test_summary_has_cost_and_accuracy(self, run: Runs) -> None:
        path = run("accuracy", **NOTHING)
        x, centers = _points(), _centers(path)
        options = settings(**KEYS)
        federation, dataset = federate(options)
        y = np.concatenate([simulated(federation, dataset, i).train.y for i in range(len(federation))])
        labels = ((x[:, None] - centers[None]) ** 2).sum(axis=2).argmin(axis=1)
        # Every cluster's most frequent component: with these separated components a one-to-one matching.
        majority = np.array([np.bincount(y[labels == j]).argmax() for j in range(10)])
        assert sorted(majority.tolist()) == list(range(10))
        assert _summary(path)["kmeans"]["accuracy"] == pytest.approx((majority[labels] == y).mean())


POINTS = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.floats(-50, 50), min_size=3, max_size=3), min_size=n, max_size=n)
)


def _phases(points: list[list[float]], **keys: Value) -> dict[str, dict[str, np.ndarray]]:
    """Return what a client with ``points`` answers to every phase, clipped and without noise; Δ = 5."""
    client = _client(np.array(points), **keys)
    bounds = {"outer": [7.0], "weigh": [3.0], "locate": [4.0, 2.0], "lloyd": [4.0, 2.0]}
    by_client = keys.get("kmeans.privacy-unit") == "client"
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 2)))[0]
    centers = np.random.default_rng(2).normal(size=(4, 3)) * 3
    received = {
        "outer": {},
        "weigh": {"basis": basis, "points": centers @ basis},
        "locate": {"basis": basis, "centers": centers @ basis},
        "lloyd": {"centers": centers},
    }
    return {
        name: perform(
            client, name, arrays, radius=None if by_client else 5.0, bounds=bounds[name] if by_client else None
        ).arrays
        for name, arrays in received.items()
    }


class TestSensitivity:
    @given(POINTS, st.lists(st.floats(-50, 50), min_size=3, max_size=3))
    def test_one_point_more_changes_no_sum_by_more_than_its_bound(
        self, points: list[list[float]], extra: list[float]
    ) -> None:
        without, with_it = _phases(points), _phases([*points, extra])
        bounds = {"outer": (2, 25.0), "weights": (1, 1.0), "sums": (2, 5.0), "counts": (1, 1.0)}  # Δ², 1, Δ, 1
        for phase, sums in with_it.items():
            for name, array in sums.items():
                order, bound = bounds[name]
                change = np.linalg.norm((array - without[phase][name]).ravel(), order)
                assert change <= bound * (1 + 1e-9), (phase, name)

    @given(POINTS)
    def test_no_client_sends_more_than_its_bound(self, points: list[list[float]]) -> None:
        bounds = {"outer": (2, 7.0), "weights": (1, 3.0), "sums": (2, 4.0), "counts": (1, 2.0)}
        for sums in _phases(points, **{"kmeans.privacy-unit": "client"}).values():
            for name, array in sums.items():
                order, bound = bounds[name]
                assert np.linalg.norm(array.ravel(), order) <= bound * (1 + 1e-9)

    @given(POINTS)
    def test_clipping_moves_no_mean(self, points: list[list[float]]) -> None:
        # Sums and contributions shrink together.
        client = _client(np.array(points), **{"kmeans.privacy-unit": "client"})
        found = _phases(points, **{"kmeans.privacy-unit": "client"})["lloyd"]
        centers = np.random.default_rng(2).normal(size=(4, 3)) * 3
        labels = ((np.array(points)[:, None] - centers[None]) ** 2).sum(axis=2).argmin(axis=1)
        for j in set(labels.tolist()):
            mean = client.points(None)[labels == j].mean(axis=0)
            np.testing.assert_allclose(found["sums"][j], found["counts"][j] * mean, atol=1e-6)

    def test_clients_send_means_where_they_are_protected(self) -> None:
        points = [[1.0, 0, 0], [3.0, 0, 0], [0, 0, 9.0]]
        keys = {"kmeans.privacy-unit": "client"}
        client = _client(np.array(points), **keys)
        clusters = client.clusters(np.array(points), np.array([0, 0, 2]), 3)
        np.testing.assert_allclose(clusters["sums"], [[2.0, 0, 0], [0, 0, 0], [0, 0, 9.0]])
        np.testing.assert_allclose(clusters["counts"], [1, 0, 1])

    def test_the_margin_leaves_far_points_out(self) -> None:
        points = np.array([[0.0, 0, 0], [2.0, 0, 0]])
        arrays = {"basis": np.eye(3)[:, :2], "centers": np.zeros((1, 2))}
        for margin, count in ((0.0, 2), (1.0, 1), (3.0, 2)):
            client = _client(points, **NOTHING, **{"kmeans.margin": margin})
            assert perform(client, "locate", arrays).arrays["counts"] == [count]


class TestNoise:
    @pytest.mark.parametrize("where", ["server", "device"])
    @pytest.mark.parametrize("unit", ["example", "client"])
    def test_every_released_sum_has_the_stated_noise(self, tmp_path: Path, where: str, unit: str) -> None:
        # Bounds so large that nothing is clipped: the noise is what is released less what is true.
        bounds = {"outer": 1e6, "weights": 1e3, "sums": 1e3, "counts": 1e2}
        keys = {f"kmeans.clip-{name}": bound for name, bound in bounds.items()} if unit == "client" else {}
        keys |= {"kmeans.radius": 50.0, "kmeans.privacy-unit": unit, "kmeans.noise-at": where}
        private, grid = _server(tmp_path, rounds=3, **{"kmeans.epsilons": "1,2,3,4,10,12", **keys})
        if unit == "example":
            bounds = {"outer": 50.0**2, "weights": 1.0, "sums": 50.0, "counts": 1.0}
        exact, still = _server(tmp_path, rounds=3, **NOTHING)
        basis = np.eye(100)[:, :10]
        sent = {
            "outer": {},
            "weigh": {"basis": basis, "points": private.points @ basis},
            "locate": {"basis": basis, "centers": private.points[:10] @ basis},
            "lloyd": {"centers": private.points[:10]},
        }
        ε = {("outer", "outer"): 1, ("weigh", "weights"): 2, ("locate", "sums"): 3, ("locate", "counts"): 4,
             ("lloyd", "sums"): 5, ("lloyd", "counts"): 6}  # fmt: skip
        first: dict[str, np.ndarray] = {}
        for phase, arrays in sent.items():
            for server_round in (2, 3) if phase == "lloyd" else (1,):
                released = private.ask(Round(private.federation, grid, server_round), phase, arrays)
                true = exact.ask(Round(exact.federation, still, server_round), phase, arrays)
                if unit == "client" and phase in ("locate", "lloyd"):
                    true = self._means(phase, arrays)
                for name, array in released.items():
                    noise = (array - true[name]).ravel()
                    gaussian = name in ("outer", "sums")
                    multiple = multiplier("gaussian", ε[phase, name], 1e-6) if gaussian else 1 / ε[phase, name]
                    scaled = noise / (bounds[name] * multiple)
                    # Squares of normal variables, or twice the moduli of Laplace ones: sums of them are chi-square.
                    found, freedom = (
                        ((scaled**2).sum(), len(noise)) if gaussian else (2 * np.abs(scaled).sum(), 2 * len(noise))
                    )
                    low, high = chi2.ppf([1e-5, 1 - 1e-5], freedom)
                    assert low < found < high, (phase, name)
                    assert name not in first or (np.abs(noise - first[name]) > 1e-9 * bounds[name]).all(), (phase, name)
                    first[name] = noise

    @staticmethod
    def _means(phase: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the sums over clients of their cluster means, and of their contributions."""
        federation, dataset = federate(settings(**KEYS))
        means, contributions = np.zeros((10, 100)), np.zeros(10)
        for client in range(len(federation)):
            x = simulated(federation, dataset, client).train.x.double().numpy()
            seen = x @ arrays["basis"] if phase == "locate" else x
            labels = ((seen[:, None] - arrays["centers"][None]) ** 2).sum(axis=2).argmin(axis=1)
            for j in set(labels.tolist()):
                means[j] += x[labels == j].mean(axis=0)
                contributions[j] += 1
        return {"sums": means, "counts": contributions}

    def test_devices_shares_do_not_depend_on_the_server(self, tmp_path: Path) -> None:
        keys = {"kmeans.epsilons": "1,1,1,1,1,1", "kmeans.noise-at": "device"}
        private, grid = _server(tmp_path, rounds=2, **keys)
        seen = []
        answer = grid._host.answer

        def listen(message: Message, own: str) -> Message:
            reply = answer(message, own)
            seen.append(reply)
            return reply

        grid._host.answer = listen  # type: ignore[method-assign]
        released = private.ask(Round(private.federation, grid, 1), "lloyd", {"centers": private.points[:10]})
        sent = unpack(seen[-1].content["arrays"])
        np.testing.assert_allclose(released["sums"], sent["sums"])  # the server adds nothing

    def test_too_few_noisy_devices_end_the_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        private, grid = _server(tmp_path, **FAST, **{"kmeans.noise-at": "device"})
        original = FedDPKMeansClient.outer

        @phases.phase
        def outer(
            self: FedDPKMeansClient, arrays: Arrays, *, radius: float | None = None, bounds: list[float] | None = None,
            scales: list[float] | None = None, shares: int = 1,
        ) -> Answer:  # fmt: skip
            if self.client_id == "3":
                raise RunError("it is broken")
            return original(self, arrays, radius=radius, bounds=bounds, scales=scales, shares=shares)

        monkeypatch.setattr(FedDPKMeansClient, "outer", outer)
        with pytest.raises(RunError, match="11 of 12 devices added their noise, 12 must"):
            private.ask(Round(private.federation, grid, 1), "outer", {})
        tolerant, grid = _server(tmp_path, **FAST, **{"kmeans.noise-at": "device", "kmeans.dropout": 0.1})
        assert len(tolerant.ask(Round(tolerant.federation, grid, 1), "outer", {})["outer"]) == 5050


class TestCohorts:
    """Neighbours for client-level privacy: federations of which one has one client more."""

    CLIENT: ClassVar[dict[str, Value]] = {"kmeans.privacy-unit": "client", "kmeans.epsilons": "1,1,1,1,1,1"}

    def test_each_client_takes_part_independently(self, tmp_path: Path) -> None:
        """Cohort sizes are binomial: in cohorts of a fixed size another client would replace one that is removed."""
        keys = {**self.CLIENT, "participation": 0.25, "samples-per-client": 20, "rounds": 4000, "num-clients": 10}
        private, _ = _server(tmp_path, method="server-lloyds", **{**keys, "kmeans.epsilons": "", "server-missing": 0})
        private.__dict__["budget"] = None
        drawn = [private.sample(SimpleNamespace(number=number)) for number in range(1, 4001)]
        counts = np.bincount([len(cohort) for cohort in drawn], minlength=11)
        expected = 4000 * binom.pmf(range(7), 10, 0.25)
        seen = np.array([*counts[:6], counts[6:].sum()])
        assert chisquare(seen, [*expected[:6], 4000 - expected[:6].sum()]).pvalue > 1e-4
        taking = np.array([[client in cohort for client in private.trainable()] for cohort in drawn])
        assert np.abs(taking.mean(axis=0) - 0.25).max() < 0.035
        assert np.abs(np.corrcoef(taking.T) - np.eye(10)).max() < 0.08

    def test_the_rate_does_not_depend_on_the_number_of_clients(self, tmp_path: Path) -> None:
        for n in (3, 5):  # a fixed cohort would have 1 of 3 and 2 of 5, rates of 1/3 and 2/5
            keys = {**self.CLIENT, "participation": 0.4, "samples-per-client": 20, "num-clients": n, "rounds": 2}
            private, _ = _server(tmp_path / str(n), **keys)
            assert np.mean(
                [len(private.sample(SimpleNamespace(number=number))) for number in range(1, 3001)]
            ) / n == pytest.approx(0.4, abs=0.03)

    def test_of_nobody_noise_alone_is_released(self, tmp_path: Path) -> None:
        keys = {**self.CLIENT, "participation": 1e-6, "rounds": 3}
        private, grid = _server(tmp_path, **keys)
        k, d, s = 10, 100, 300
        sent: dict[str, tuple[Arrays, dict[str, tuple[int, ...]]]] = {
            "outer": ({}, {"outer": (5050,)}),
            "weigh": ({"basis": np.eye(d)[:, :k], "points": private.points[:, :k]}, {"weights": (s,)}),
            "locate": ({"basis": np.eye(d)[:, :k], "centers": np.eye(k)}, {"sums": (k, d), "counts": (k,)}),
            "lloyd": ({"centers": private.points[:k]}, {"sums": (k, d), "counts": (k,)}),
        }
        for phase, (arrays, shapes) in sent.items():
            released = private.ask(Round(private.federation, grid, 1), phase, arrays)
            assert {name: array.shape for name, array in released.items()} == shapes
            assert all(np.abs(array).min() > 0 for array in released.values())

    def test_devices_add_no_noise_if_nobody_takes_part(self, tmp_path: Path) -> None:
        keys = {**self.CLIENT, "participation": 1e-6, "rounds": 3, "kmeans.noise-at": "device"}
        private, grid = _server(tmp_path, **keys)
        with pytest.raises(RunError, match="0 of 0 devices added their noise, 1 must"):
            private.ask(Round(private.federation, grid, 1), "outer", {})

    @pytest.mark.parametrize("keys", [{"cohort-size": 6}, {"oversample": 1.5}])
    def test_cohorts_of_a_fixed_size_are_refused(self, run: Runs, keys: dict[str, Value]) -> None:
        with pytest.raises(ConfigurationError, match="each client must take part independently of the others"):
            run("fixed", **{**self.CLIENT, **keys})
        run("example", **FAST, **keys)  # an example more or less changes no cohort

    def test_availability_is_refused(self, run: Runs) -> None:
        with pytest.raises(ConfigurationError, match="decides who is online afterwards"):
            run("fleet", **{**self.CLIENT, "fleet.speed": 50.0, "fleet.availability": "diurnal"})


class TestBudget:
    def test_the_total_is_dp_accountings(self, tmp_path: Path) -> None:
        keys = {"kmeans.epsilons": "0.2,0.1,0.5,0.1,0.4,0.2"}
        private, _ = _server(tmp_path, rounds=3, **keys)
        releases = [Release("gaussian", multiplier("gaussian", 0.2, 1e-6)), Release("laplace", 10.0),
                    Release("gaussian", multiplier("gaussian", 0.5, 1e-6)), Release("laplace", 10.0),
                    Release("gaussian", multiplier("gaussian", 0.2, 1e-6), 2), Release("laplace", 10.0, 2)]  # fmt: skip
        assert private.budget is not None
        assert private.budget.epsilon == pytest.approx(total(releases, 1e-6))

    def test_a_total_is_kept_and_split(self, tmp_path: Path) -> None:
        private, _ = _server(tmp_path, rounds=2, **{"kmeans.epsilon": 0.8})
        assert private.budget is not None
        assert 0.799 < private.budget.epsilon <= 0.8
        ε = {(s.query.phase, s.query.name): s.epsilon for s in private.budget.spendings}
        whole = sum(ε.values())
        np.testing.assert_allclose(ε["locate", "sums"] / whole, 0.7 * 0.45)
        np.testing.assert_allclose(ε["lloyd", "sums"] / whole, 0.3 * 0.75)

    def test_sensitivities_of_the_two_units(self, tmp_path: Path) -> None:
        private, _ = _server(tmp_path, **FAST)
        assert private.budget is not None
        Δ = np.linalg.norm(private._server_points, axis=1).max()
        assert {s.query.name: s.sensitivity for s in private.budget.spendings} == pytest.approx(
            {"outer": Δ**2, "weights": 1.0, "sums": Δ, "counts": 1.0}
        )
        private, _ = _server(tmp_path, **FAST, **{"kmeans.privacy-unit": "client", "kmeans.clip-sums": 12.5})
        assert private.budget is not None
        found = {s.query.name: s.sensitivity for s in private.budget.spendings}
        assert found["weights"] == 200  # samples-per-client
        assert found["sums"] == 12.5
        assert found["counts"] == 10
        assert found["outer"] < 200 * Δ**2  # what clients of the server's points would send at most

    def test_bounds_of_clients_in_closed_form(self) -> None:
        """Points at three corners r·e_j: means of squared norm r², and Σ ppᵀ = r²·diag(n) for n points of each."""
        r, points = 7.0, 7.0 * np.repeat(np.eye(3), 50, axis=0)
        for m in (2, 60):
            _, hyper = parse(config(**KEYS))
            bounds = client_bounds(hyper, points, 3, m, np.random.default_rng(1))
            assert bounds["sums"] == pytest.approx(np.sqrt(min(3, m)) * r)
            assert (bounds["weights"], bounds["counts"]) == (m, min(3, m))
            possible = [r**2 * np.linalg.norm([a, b, m - a - b]) for a in range(m + 1) for b in range(m + 1 - a)]
            assert np.abs(np.array(possible) - bounds["outer"]).min() < 1e-9
            assert bounds["outer"] > r**2 * m / np.sqrt(3)  # the largest of a hundred clients', not the evenest one's
        own = {"outer": 1.0, "weights": 2.0, "sums": 3.0, "counts": 4.0}
        _, hyper = parse(config(**KEYS, **{f"kmeans.clip-{name}": bound for name, bound in own.items()}))
        assert client_bounds(hyper, points, 3, 60, np.random.default_rng(1)) == own

    def test_it_is_told_and_written_before_a_client_is_asked(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(message: Message) -> None:
            if message.metadata.message_type == "train":
                assert (tmp_path / "told" / "privacy.json").exists()
                raise RunError("nobody may be asked")

        keys = config(**{**KEYS, **FAST, "runs-dir": str(tmp_path), "run-name": "told"})
        with caplog.at_level("INFO", "flwr"), pytest.raises(RunError, match="nobody may be asked"):
            run_app(keys, 1, intercept=refuse)
        record = json.loads((tmp_path / "told" / "privacy.json").read_text())
        assert [release["phase"] for release in record["releases"]] == ["outer", "weigh", "locate", "locate"]
        assert record["releases"][1]["scale"] == 1.0
        assert "-private for one example" in caplog.text

    def test_a_large_delta_is_warned_of(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        private, _ = _server(tmp_path, **FAST, **{"kmeans.delta": 0.001})
        with caplog.at_level("WARNING", "flwr"):
            assert private.budget is not None
        assert "not below 1/2400" in caplog.text

    def test_baselines_without_steps_ask_for_nothing(self, run: Runs) -> None:
        sent = []
        path = run(
            "nothing", intercept=lambda message: sent.append(message.metadata.message_type), method="server-lloyds"
        )
        assert "train" not in sent
        assert _summary(path)["privacy"] == {}

    @pytest.mark.parametrize("method", PRIVATE)
    def test_every_private_method_keeps_its_budget(self, run: Runs, method: str) -> None:
        path = run(method.replace("+", "p"), method=method, rounds=2, **{"kmeans.epsilon": 1.5})
        assert 1.49 < _summary(path)["privacy"]["epsilon"] <= 1.5
        assert np.isfinite(_centers(path)).all()

    def test_small_clusters_keep_their_centre(self, tmp_path: Path) -> None:
        private, _ = _server(tmp_path, **FAST, **{"kmeans.min-count": 3.0, "kmeans.radius": 10.0})
        released = {"sums": np.full((3, 2), 8.0), "counts": np.array([4.0, 2.9, -5.0])}  # b = 1
        fallback = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
        found = private.divide(released, "locate", fallback)
        np.testing.assert_allclose(found, [[2.0, 2.0], [2.0, 2.0], [3.0, 3.0]])

    def test_centres_are_clipped_as_the_points_are(self, tmp_path: Path) -> None:
        """Noise may carry a centre out of the ball of radius Δ; without privacy nothing is clipped."""
        released = {"sums": np.array([[60.0, 80.0], [3.0, 4.0]]), "counts": np.array([5.0, 5.0])}
        fallback = np.zeros((2, 2))
        private, _ = _server(tmp_path, **FAST, **{"kmeans.radius": 10.0})
        np.testing.assert_allclose(private.divide(released, "locate", fallback), [[6.0, 8.0], [0.6, 0.8]])
        free, _ = _server(tmp_path, **NOTHING)
        np.testing.assert_allclose(free.divide(released, "locate", fallback), [[12.0, 16.0], [0.6, 0.8]])

    def test_light_points_never_reach_k_means(self, tmp_path: Path) -> None:
        private, _ = _server(tmp_path, **FAST, **{"kmeans.k": 2})
        points = np.arange(8.0).reshape(4, 2)
        kept, weights = private._heavy(points, np.array([9.0, -3.0, 4.9, 5.0]))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(kept, points[[0, 3]])
        np.testing.assert_array_equal(weights, [9.0, 5.0])
        kept, weights = private._heavy(points, np.array([-9.0, -3.0, 4.9, 0.0]))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(kept, points[[2, 3]])
        assert (weights > 0).all()


class TestMistakes:
    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"kmeans.k": 301}, "kmeans.k: 301 clusters need at least as many points of the server; it has 300"),
            ({"kmeans.split": "0.2,0.2,0.2,0.2"}, "must be above 0 and sum to 1"),
            ({"kmeans.split": "0.5,0.5"}, "must have 4 shares"),
            ({"kmeans.epsilons": "1,1,1"}, "'1,1,1' has 3 numbers, but 4 sums are asked for"),
            ({"kmeans.epsilons": "1,1,1,-1"}, "must be above 0"),
            ({"rounds": 0}, "rounds: 'feddp-kmeans' takes 1"),
            ({"method": "k-fed", "rounds": 2}, "rounds: 'k-fed' takes 1"),
            ({"model": "mlp"}, "it needs model = 'centers'"),
            ({"method": "fedavg"}, "trains a network, not 'centers'"),
            ({"init": "other"}, "finds its own centres|no run"),
        ],
    )
    def test_they_are_refused_at_once(self, run: Runs, keys: dict[str, Value], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            run("wrong", **keys)

    def test_bad_points_are_named_where_nothing_is_private(self) -> None:
        points = np.zeros((3, 3))
        points[1, 2] = np.nan
        with pytest.raises(RunError, match="point 1 has a NaN or infinite feature"):
            _client(points, **NOTHING).points(None)
        with pytest.raises(RunError, match="no points to cluster"):
            _client(np.empty((0, 3)), **NOTHING).points(None)

    def test_in_private_sums_a_bad_point_changes_no_more_than_a_good_one(self) -> None:
        good = [[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]
        for phase, found in _phases([*good, [np.nan, 0.0, 0.0], [np.inf, 1.0, 1.0]]).items():
            for name, array in found.items():
                np.testing.assert_array_equal(array, _phases(good)[phase][name])
        for found in _phases([[np.nan, 0.0, 0.0]]).values():
            assert not any(array.any() for array in found.values())

    @pytest.mark.parametrize("unit", ["example", "client"])
    def test_server_points_without_a_norm_cannot_bound_anything(self, tmp_path: Path, unit: str) -> None:
        private, _ = _server(tmp_path, **FAST, **{"kmeans.privacy-unit": unit})
        private.__dict__["_server_points"] = np.zeros((300, 100))
        with pytest.raises(ConfigurationError, match=r"kmeans\.radius|by 0 at most"):
            private.budget  # noqa: B018

    def test_sizes_of_clients_bound_nothing(self, tmp_path: Path) -> None:
        keys = {"dataset": "digits", "samples-per-client": 0, "server-examples": 50, "server-ood-examples": 0}
        private, _ = _server(tmp_path, **FAST, **keys, **{"kmeans.privacy-unit": "client"})
        with pytest.raises(ConfigurationError, match=r"kmeans\.client-size: say how many points a usual client has"):
            private.budget  # noqa: B018

    def test_a_client_of_few_points_has_as_many_centers_in_k_fed(self, run: Runs) -> None:
        client = _client(np.array([[1.0, 2.0], [5.0, 6.0]]), kind=KFedClient, **{"kmeans.k": 4})
        answer = perform(client, "cluster", {}).arrays
        np.testing.assert_array_equal(answer["found"], [1, 1, 0, 0])
        assert sorted(map(tuple, answer["centers"][:2])) == [(1.0, 2.0), (5.0, 6.0)]
        path = run("few", method="k-fed", **{"samples-per-client": 5})  # 12 clients have 60 points and find 10 clusters
        assert _centers(path).shape == (10, 100)
        with pytest.raises(RunError, match="it has no points to cluster"):
            perform(_client(np.zeros((0, 2)), kind=KFedClient), "cluster", {})

    def test_a_client_without_a_center_is_left_out_in_k_fed(self, run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        original = KFedClient.perform

        def perform_(client: Any, name: str, arrays: Any, arguments: Any) -> Any:
            answer = original(client, name, arrays, arguments)
            if client.client_id == "1" and name == "cluster":
                answer.arrays["found"][:] = 0
            return answer

        monkeypatch.setattr(KFedClient, "perform", perform_)
        path = run("none", nodes=12, method="k-fed")
        (line,) = (path / "failures.jsonl").read_text("utf-8").splitlines()
        assert json.loads(line)["reason"] == (
            "unusable reply: client 1 returned no centre, at least 1 of its 10 rows must be one"
        )


class TestResume:
    def test_a_broken_run_goes_on_to_the_same_end(self, run: Runs) -> None:
        keys = {**FAST, "kmeans.epsilons": "1,1,1,1,1,1", "rounds": 3}
        whole, broken = run.whole_and_broken(3, **keys)
        np.testing.assert_array_equal(_centers(broken), _centers(whole))
        assert len(_summary(broken)["kmeans"]["course"]) == 3

    def test_another_budget_is_refused(self, run: Runs) -> None:
        run("done", rounds=2, **{"kmeans.epsilons": "1,1,1,1,1,1"})
        with pytest.raises(ConfigurationError, match="began with another privacy budget"):
            run("done", rounds=3, resume="done", **{"kmeans.epsilons": "1,1,1,1,1,1"})
        with pytest.raises(ConfigurationError, match=r"kmeans\.epsilons: was '1,1,1,1,1,1', is '2,1,1,1,1,1'"):
            run("done", rounds=2, resume="done", **{"kmeans.epsilons": "2,1,1,1,1,1"})


class TestDevices:
    @pytest.fixture
    def devices(self, tmp_path: Path) -> tuple[list[dict[str, str]], dict[str, Value]]:
        """Return four devices with digits, and the keys of a run on them."""
        federation, dataset = federate(settings(**{"partitioner": "iid", "num-clients": 5}))
        for client in range(5):
            write_device(federation, dataset, client, tmp_path / f"device{client}")
        nodes = [{"client-id": f"d{i}", "data-path": str(tmp_path / f"device{i}")} for i in range(4)]
        keys: dict[str, Value] = {
            "method": "feddp-kmeans", "model": "centers", "num-clients": 4, "participation": 1.0, "rounds": 1,
            "server-data": str(tmp_path / "device4" / "train.parquet"), "runs-dir": str(tmp_path),
            "kmeans.epsilons": "5,5,5,5",
        }  # fmt: skip
        return nodes, keys

    @pytest.mark.parametrize("where", mostly_long(["server", "device"], "device"))
    def test_their_noise_cannot_be_repeated(
        self, devices: tuple[list[dict[str, str]], dict[str, Value]], tmp_path: Path, where: str
    ) -> None:
        nodes, keys = devices
        for name in ("first", "second"):
            run_app(config(**{**keys, "run-name": name, "kmeans.noise-at": where}), nodes)
        # Far beyond rounding: the noise of ε = 5 differs.
        assert np.abs(_centers(tmp_path / "first") - _centers(tmp_path / "second")).max() > 1e-4

    def test_a_device_keeps_the_centres_as_a_model(
        self, devices: tuple[list[dict[str, str]], dict[str, Value]], tmp_path: Path
    ) -> None:
        nodes, keys = devices
        nodes = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
        run_app(config(**{**keys, "run-name": "kept", "kmeans.k": 6}), nodes)
        model, card = load_model(tmp_path / "state" / "kept" / "d1")
        assert card.outputs == 6
        assert predict(model, torch.zeros(2, 1, 8, 8), TASK).shape == (2, 6)

    def test_they_are_not_asked_again(self, devices: tuple[list[dict[str, str]], dict[str, Value]]) -> None:
        nodes, keys = devices
        run_app(config(**{**keys, "run-name": "once"}), nodes)
        with pytest.raises(ConfigurationError, match="a private clustering of real devices cannot be resumed"):
            run_app(config(**{**keys, "resume": "once"}), nodes)

    def test_server_data_are_asked_for(self, devices: tuple[list[dict[str, str]], dict[str, Value]]) -> None:
        nodes, keys = devices
        with pytest.raises(ConfigurationError, match="server-data: name a parquet file"):
            run_app(config(**{**keys, "run-name": "none", "server-data": ""}), nodes)


class TestRevealingSums:
    """Four points of two clusters, of which a step moves one."""

    POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [9.0, 0.0], [10.0, 0.0], [11.0, 0.0]])
    FIRST = np.array([[1.0, 0.0], [10.0, 0.0]])
    SECOND = np.array([[0.0, 0.0], [3.5, 0.0]])  # 2 goes to the second cluster

    @staticmethod
    def _device(points: np.ndarray, kind: type[KMeansClient] = FedDPKMeansClient, **keys: Value) -> KMeansClient:
        client = _client(points, kind, **{**NOTHING, "kmeans.k": 2, **keys})
        client.data.simulated = False
        return client

    def test_a_device_refuses_the_step_that_reveals_a_row(self) -> None:
        device = self._device(self.POINTS)
        assert perform(device, "lloyd", {"centers": self.FIRST}).arrays["counts"].tolist() == [3, 3]
        again = perform(device, "lloyd", {"centers": self.FIRST + 0.1}, round=2)  # nobody moves
        assert again.arrays["counts"].tolist() == [3, 3]
        with pytest.raises(RunError, match=r"its sums would reveal single rows: .* set kmeans\.reveal-rows to true"):
            perform(device, "lloyd", {"centers": self.SECOND}, round=3)

    def test_what_is_refused_is_not_remembered(self) -> None:
        device = self._device(self.POINTS)
        with pytest.raises(RunError, match="reveal single rows"):
            perform(device, "lloyd", {"centers": np.array([[-5.0, 0.0], [5.2, 0.0]])})  # 0 alone
        perform(device, "lloyd", {"centers": self.FIRST}, round=2)

    @pytest.mark.parametrize(
        "keys",
        [
            {"kmeans.reveal-rows": True},
            {"secure-aggregation": True},
            {"kmeans.privacy-unit": "example"},
        ],
    )
    def test_told_otherwise_or_protected_it_returns_them(self, keys: dict[str, Value]) -> None:
        device = self._device(self.POINTS, **keys)
        for number, centers in enumerate([self.FIRST, self.SECOND], start=1):
            perform(device, "lloyd", {"centers": centers}, round=number, radius=20.0)

    def test_a_simulated_client_returns_them(self) -> None:
        client = _client(self.POINTS, **{**NOTHING, "kmeans.k": 2})
        for number, centers in enumerate([self.FIRST, self.SECOND], start=1):
            perform(client, "lloyd", {"centers": centers}, round=number)

    def test_other_phases_refuse_too(self) -> None:
        with pytest.raises(RunError, match="reveal single rows"):
            perform(self._device(self.POINTS[:1]), "outer", {})
        perform(self._device(self.POINTS), "outer", {})
        basis = np.eye(2)
        with pytest.raises(RunError, match="reveal single rows"):  # but for the margin, 9 would be with two others
            perform(
                self._device(self.POINTS, **{"kmeans.margin": 1.0}), "locate",
                {"basis": basis, "centers": np.array([[1.0, 0.0], [8.5, 0.0]])},
            )  # fmt: skip
        perform(self._device(self.POINTS), "locate", {"basis": basis, "centers": np.array([[1.0, 0.0], [8.5, 0.0]])})
        lone = np.array([[0.0, 0.1], [1.0, 0.0], [50.0, 3.0]])
        with pytest.raises(RunError, match="reveal single rows"):  # k-fed never adds noise, whatever the unit
            perform(self._device(lone, KFedClient, **{"kmeans.privacy-unit": "example"}), "cluster", {})


def test_a_new_client_is_assigned_by_the_exported_centres(run: Runs, tmp_path: Path) -> None:
    path = run("run", **FAST)
    folder = personalise(path, tmp_path / "model", "3")
    model, _ = load_model(folder)
    np.testing.assert_allclose(model[0].centers.numpy(), _centers(path), rtol=1e-6)  # type: ignore[index]


def test_one_process_computes_what_flower_does(run: Runs, tmp_path: Path) -> None:
    path = run("flower", nodes=1, **FAST)
    here = run_here(config(**{**KEYS, **FAST, "runs-dir": str(tmp_path), "run-name": "here"}), tmp_path / "here")
    np.testing.assert_array_equal(_centers(path), _centers(here))


def test_unlabeled_clients_are_clustered_too(run: Runs) -> None:
    path = run("half", **FAST, **{"labeled-fraction": 0.5, "unseen-fraction": 0.25})
    assert sum(read_checkpoint(path).state["weights"]) > 1500  # nine clients of 200 points, and noise


def test_private_devices_send_no_figures(
    tmp_path: Path,
) -> None:
    federation, dataset = federate(settings(**{"partitioner": "iid", "num-clients": 2}))
    for client in range(2):
        write_device(federation, dataset, client, tmp_path / f"device{client}")
    keys = {"method": "feddp-kmeans", "model": "centers", "num-clients": 1, "participation": 1.0, "rounds": 1,
            "server-data": str(tmp_path / "device1" / "train.parquet"), "runs-dir": str(tmp_path)}  # fmt: skip
    nodes = [{"client-id": "a", "data-path": str(tmp_path / "device0")}]
    grid = run_app(config(**{**keys, **FAST, "run-name": "secret"}), nodes)
    assert not unpack(grid.received[-1].content["arrays"])["table"].any()
    assert "loss" not in Reply.unpack(grid.received[-1].content).metrics
    assert "cost" not in _summary(tmp_path / "secret")["kmeans"]
    run_app(config(**{**keys, **NOTHING, "run-name": "open"}), nodes)
    assert _summary(tmp_path / "open")["kmeans"]["cost"] > 0
