"""Whole runs of the real ServerApp and ClientApp, without Ray: learning, limits, packing, resume, failures."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from safetensors.numpy import load_file

from florilegium.clients.core import training
from florilegium.clients.core.wire import Reply
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import torch_generator
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.core.server_step import ServerStep
from florilegium.strategies.exchange.flower_inside import ErrorCode
from florilegium.strategies.folder.metrics_file import read_evaluations, read_metrics
from florilegium.strategies.folder.run_folder import RunFolder, read_checkpoint, read_config
from tests.grid import FIRST_NODE, run_app
from tests.runs import timeless
from tests.support import TASK, Value, config, settings

Run = Callable[..., Path]
SHORT: dict[str, Value] = {"local-epochs": 1, "batch-size": 32}
"""Training that does not last, where nothing has to be learned."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs the app under a name, and returns the run's folder: ``tmp_path / name``."""

    def start(
        name: str, nodes: int = 2, intercept: Callable[[Message], Message | None] | None = None, **keys: Value
    ) -> Path:
        overrides = {"num-clients": 6, "rounds": 2, "evaluate-every": 0, "participation": 0.5, **SHORT, **keys}
        names = {} if "resume" in keys else {"run-name": name}
        run_app(config(**{**overrides, **names, "runs-dir": str(tmp_path)}), nodes, intercept=intercept)
        return tmp_path / name

    return start


def _model(path: Path) -> dict[str, np.ndarray]:
    return dict(read_checkpoint(path).arrays)


class TestLearning:
    def test_default_federation_is_learned(self, run: Run) -> None:
        # Chance is 10 %; over seeds 1 to 5 this run ends between 0.76 and 0.87.
        path = run("long", rounds=10, participation=1.0, **{"num-clients": 10, "local-epochs": 5, "batch-size": 10})
        assert read_metrics(path)[-1]["seen"]["accuracy"] > 0.7

    def test_one_full_batch_step_of_all_clients_is_centralised_gradient_descent(self, run: Run) -> None:
        # Weighted by examples, Σ n_k (w − η∇F_k) / Σ n_k = w − η∇F of the pooled data.
        keys: dict[str, Value] = {
            "participation": 1.0,
            "local-steps": 1,
            "batch-size": 1000,
            "rounds": 1,
            "learning-rate": 0.1,
        }
        path = run("central", **keys)
        options = settings(**{"num-clients": 6, **keys})
        federation, dataset = federate(options)
        model = build("mlp", (1, 8, 8), 10, options.seed)
        parts = [simulated(federation, dataset, i).train for i in range(6)]
        loss = torch.nn.functional.cross_entropy(
            model(torch.cat([part.x for part in parts])), torch.cat([part.y for part in parts])
        )
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            expected = (parameter - 0.1 * parameter.grad).detach().numpy()
            np.testing.assert_allclose(_model(path)[name], expected, atol=2e-6)

    def test_uniform_weighting_is_the_plain_mean(self, run: Run) -> None:
        keys: dict[str, Value] = {
            "participation": 1.0,
            "local-steps": 1,
            "batch-size": 1000,
            "rounds": 1,
            "weighting": "uniform",
        }
        path = run("uniform", **keys)
        options = settings(**{"num-clients": 6, **keys})
        federation, dataset = federate(options)
        start = get_arrays(build("mlp", (1, 8, 8), 10, options.seed))
        models = []
        for i in range(6):
            model = build("mlp", (1, 8, 8), 10, options.seed)
            set_arrays(model, start)
            generator = torch.Generator().manual_seed(0)  # one full batch: its order does not matter
            training.train(model, simulated(federation, dataset, i).train, options, generator, task=TASK)
            models.append(get_arrays(model))
        for name, array in _model(path).items():
            np.testing.assert_allclose(array, np.mean([m[name] for m in models], axis=0), atol=2e-6)

    def test_server_momentum_and_learning_rate(self, run: Run) -> None:
        # One round is linear in η; two rounds with β follow v₂ = β·v₁ + Δ₂ with Δ₂ measured at w₁ (same clients).
        start = get_arrays(build("mlp", (1, 8, 8), 10, 1))
        whole, half = _model(run("whole", rounds=1)), _model(run("half", rounds=1, **{"server-learning-rate": 0.5}))
        plain2, momentum2 = (
            _model(run("plain", rounds=2)),
            _model(run("momentum", rounds=2, **{"server-momentum": 0.9})),
        )
        for name, w0 in start.items():
            np.testing.assert_allclose(half[name], (w0 + whole[name]) / 2, atol=1e-6)
            np.testing.assert_allclose(momentum2[name], plain2[name] + 0.9 * (whole[name] - w0), atol=2e-6)

    def test_server_adam_goes_along_signs_at_first(self, run: Run) -> None:
        """FedAdam's first step is (1 − β₁)Δ/(√(1 − β₂)|Δ| + τ): Δ/(|Δ| + 10τ)."""
        start, plain = get_arrays(build("mlp", (1, 8, 8), 10, 1)), _model(run("plain", rounds=1))
        keys: dict[str, Value] = {
            "server-optimizer": "fedadam",
            "server-learning-rate": 0.01,
            "server-adaptivity": 1e-4,
        }
        for name, array in _model(run("adam", rounds=1, **keys)).items():
            Δ = plain[name].astype(np.float64) - start[name]
            assert array.dtype == start[name].dtype
            np.testing.assert_allclose(array - start[name], 0.01 * Δ / (np.abs(Δ) + 1e-3), rtol=1e-3, atol=2e-6)

    def test_server_adams_moments_are_weighted_sums_of_all_updates(self) -> None:
        """m_t = (1 − β₁) Σᵢ β₁^(t−i) Δᵢ, s_t with squares and β₂ (Reddi et al. 2021); the step is m/(√s + τ)."""
        step = ServerStep(settings(server_optimizer="fedadam", server_adaptivity=0.01))
        updates = np.random.default_rng(1).normal(size=(4, 3))
        for t in range(1, 5):
            found = step.direction({"w": updates[t - 1]})["w"]
            ages = np.arange(t)[::-1]
            m = 0.1 * 0.9**ages @ updates[:t]
            s = 0.01 * 0.99**ages @ updates[:t] ** 2
            np.testing.assert_allclose(found, m / (np.sqrt(s) + 0.01))

    def test_batch_norms_statistics_take_the_plain_mean(self, run: Run) -> None:
        keys: dict[str, Value] = {"rounds": 1, "model": "cnn-bn"}
        plain, fast = _model(run("plain", **keys)), _model(run("fast", **keys, **{"server-learning-rate": 5.0}))
        same = {name for name, array in plain.items() if np.array_equal(array, fast[name])}
        assert same == {f"conv{i}.1.running_{moment}" for i in (1, 2, 3) for moment in ("mean", "var")}


class TestLimits:
    def test_fedprox_with_mu_zero_is_fedavg(self, run: Run) -> None:
        a, b = run("avg"), run("prox", method="fedprox", **{"fedprox.mu": 0.0})
        for name, array in _model(a).items():
            np.testing.assert_array_equal(array, _model(b)[name])

    def test_fedprox_pulls_towards_the_global_model(self, run: Run) -> None:
        start = get_arrays(build("mlp", (1, 8, 8), 10, 1))

        def moved(path: Path) -> float:
            return sum(float(((array - start[name]) ** 2).sum()) for name, array in _model(path).items())

        distances = [moved(run(f"mu{mu}", method="fedprox", rounds=1, **{"fedprox.mu": mu})) for mu in (0.0, 1.0, 10.0)]
        assert distances[0] > distances[1] > distances[2] > 0

    def test_fedprox_step_is_the_gradient_of_its_objective(self, run: Run) -> None:
        # Two full-batch steps of one client: w₁ = w₀ − η∇F(w₀); w₂ = w₁ − η(∇F(w₁) + μ(w₁ − w₀)).
        mu, eta = 0.7, 0.2
        keys: dict[str, Value] = {"num-clients": 1, "participation": 1.0, "local-steps": 2, "batch-size": 2000,
                                  "rounds": 1, "learning-rate": eta, "partitioner": "iid", "method": "fedprox",
                                  "fedprox.mu": mu}  # fmt: skip
        path = run("two-steps", **keys)
        options = settings(**keys)
        examples = simulated(*federate(options), 0).train
        model = build("mlp", (1, 8, 8), 10, options.seed)
        w0 = [p.detach().clone() for p in model.parameters()]
        for _ in range(2):
            proximal = sum(((p - a) ** 2).sum() for p, a in zip(model.parameters(), w0, strict=True))
            objective = torch.nn.functional.cross_entropy(model(examples.x), examples.y) + mu / 2 * proximal
            gradients = torch.autograd.grad(objective, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients, strict=True):
                    p -= eta * g
        for name, array in get_arrays(model).items():
            np.testing.assert_allclose(_model(path)[name], array, atol=2e-6)

    def test_local_with_one_client_is_fedavg_with_one_client(self, run: Run) -> None:
        # One epoch a round without momentum: going on alone is what averaging over one client does.
        keys: dict[str, Value] = {"num-clients": 1, "participation": 1.0, "partitioner": "iid", "rounds": 3}
        local, averaged = run("alone", method="local", **keys), run("averaged", **keys)
        newest = sorted((local / "clients" / "0").glob("*.safetensors"))[-1]
        for name, array in load_file(newest).items():
            np.testing.assert_allclose(array, _model(averaged)[name], atol=1e-6)

    def test_local_sends_no_model(self, run: Run) -> None:
        summary = json.loads((run("silent", method="local") / "summary.json").read_text())
        assert summary["bytes_down"] == summary["bytes_up"] == 0


class TestPacking:
    def test_results_do_not_depend_on_the_number_of_nodes(self, run: Run) -> None:
        paths = [run(f"nodes{n}", nodes=n, participation=1.0) for n in (1, 2, 5)]
        for path in paths[1:]:
            for name, array in _model(paths[0]).items():
                np.testing.assert_allclose(_model(path)[name], array, atol=1e-6)
            assert read_metrics(path)[-1]["seen"]["accuracy"] == read_metrics(paths[0])[-1]["seen"]["accuracy"]

    def test_same_packing_is_bit_identical(self, run: Run) -> None:
        first, second = _model(run("first")), _model(run("second"))
        for name, array in first.items():
            np.testing.assert_array_equal(second[name], array)

    def test_cohorts_do_not_depend_on_the_method(self, tmp_path: Path) -> None:
        asked = []
        for method in ("fedavg", "fedprox", "local"):
            keys = config(
                method=method, rounds=2, **{"evaluate-every": 0, "runs-dir": str(tmp_path), "run-name": method}
            )
            grid = run_app(keys)
            trains = [m for m in grid.sent if m.metadata.message_type == "train"]
            asked.append([(m.content["config"]["round"], sorted(m.content["config"]["clients"])) for m in trains])
        assert asked[0] == asked[1] == asked[2]


class TestResume:
    @pytest.mark.parametrize(
        "keys",
        [
            {"method": "fedavg", "server-momentum": 0.9},
            {"method": "fedprox", "fedprox.adaptive": True},
            {"method": "local", "finetune-epochs": 1},
        ],
        ids=lambda keys: str(keys["method"]),
    )
    def test_three_and_three_is_six(self, run: Run, keys: dict[str, Value]) -> None:
        whole = run("whole", rounds=6, **{**keys, "evaluate-every": 3})
        parts = run("parts", rounds=3, **{**keys, "evaluate-every": 3})
        run("parts", rounds=6, resume="parts", **{**keys, "evaluate-every": 3})
        a, b = read_checkpoint(whole), read_checkpoint(parts)
        assert a.round == b.round == 6
        assert a.arrays.keys() == b.arrays.keys()
        assert a.state.keys() == b.state.keys()
        for mine, theirs in ((a.arrays, b.arrays), (a.state, b.state)):
            for name, array in mine.items():
                np.testing.assert_array_equal(array, theirs[name])
        assert a.facts["own"] == b.facts["own"]
        assert (whole / "clients.csv").read_text() == (parts / "clients.csv").read_text()
        assert timeless(whole) == timeless(parts)

    def test_a_killed_run_goes_on_from_its_last_checkpoint(self, run: Run) -> None:
        # Killed in round 5, after clients had already written states of round 4 and 5.
        keys: dict[str, Value] = {"method": "local", "rounds": 6, "evaluate-every": 3, "participation": 1.0}
        whole = run("whole", **keys)

        with pytest.raises(KeyboardInterrupt):
            run("killed", intercept=_die_in_round_5, **keys)
        assert read_checkpoint(whole.parent / "killed").round == 3
        killed = run("killed", resume="killed", **keys)
        assert timeless(whole) == timeless(killed)  # the line of round 4 has been replaced
        assert (whole / "clients.csv").read_text() == (killed / "clients.csv").read_text()

    def test_checkpoints_do_not_wait_for_evaluations(self, run: Run) -> None:
        keys: dict[str, Value] = {"method": "local", "rounds": 6, "evaluate-every": 0, "participation": 1.0}
        whole = run("whole", **keys)
        with pytest.raises(KeyboardInterrupt):
            run("killed", intercept=_die_in_round_5, **{**keys, "checkpoint-every": 2})
        assert read_checkpoint(whole.parent / "killed").round == 4
        assert [line["round"] for line in read_metrics(whole.parent / "killed")] == [1, 2, 3, 4]
        killed = run("killed", resume="killed", **keys)
        assert timeless(whole) == timeless(killed)
        assert (whole / "clients.csv").read_text() == (killed / "clients.csv").read_text()

    @pytest.mark.parametrize(
        ("seconds", "guess", "share", "last"),
        [
            (1e-9, 0.1, 1e9, 4),  # the time comes with every round
            (1e9, 0.1, 1e9, 1),  # with the first one alone
            (1e-9, 1e9, 1.0, None),  # a checkpoint is taken to be too expensive
            (0.0, 0.1, 1e9, None),
        ],
    )
    def test_checkpoints_whose_time_has_come(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, seconds: float, guess: float, share: float, last: int | None
    ) -> None:
        monkeypatch.setattr("florilegium.strategies.core.rounds._GUESS", guess)
        monkeypatch.setattr("florilegium.strategies.core.rounds._SHARE", share)
        keys: dict[str, Value] = {"method": "local", "rounds": 6, "evaluate-every": 0, "participation": 1.0}
        whole = run("whole", **keys)
        with pytest.raises(KeyboardInterrupt):
            run("killed", intercept=_die_in_round_5, **{**keys, "checkpoint-seconds": seconds})
        if last is None:
            assert not list((whole.parent / "killed").glob("checkpoint/*"))
        else:
            assert read_checkpoint(whole.parent / "killed").round == last

    def test_a_run_killed_twice_forgets_both_attempts(self, run: Run) -> None:
        # Both attempts die in round 5, after clients wrote states of round 4; each state must count round 4 once.
        keys: dict[str, Value] = {"method": "local", "rounds": 6, "evaluate-every": 3, "participation": 1.0}
        whole = run("whole", **keys)

        for attempt in ({}, {"resume": "killed"}):
            with pytest.raises(KeyboardInterrupt):
                run("killed", intercept=_die_in_round_5, **{**keys, **attempt})
        killed = run("killed", resume="killed", **keys)
        assert (whole / "clients.csv").read_text() == (killed / "clients.csv").read_text()

    @pytest.mark.parametrize(("method", "folder"), [("local", "clients"), ("fedamp", "bank")])
    @pytest.mark.parametrize("earlier", [False, True])
    def test_clients_whose_files_share_folders_resume_alike(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, method: str, folder: str, earlier: bool
    ) -> None:
        """Clients 1 to 5 share a folder, as those from 1000 on do; ``earlier``: each has its own before the kill."""
        keys: dict[str, Value] = {"method": method, "rounds": 6, "evaluate-every": 3, "participation": 0.5}
        whole = run("whole", **keys)
        monkeypatch.setattr("florilegium.clients.core.own_files.SINGLE", 1000 if earlier else 1)
        with pytest.raises(KeyboardInterrupt):
            run("killed", intercept=_die_in_round_5, **keys)
        monkeypatch.setattr("florilegium.clients.core.own_files.SINGLE", 1)
        killed = run("killed", resume="killed", **keys)
        assert (whole / "clients.csv").read_text() == (killed / "clients.csv").read_text()
        assert timeless(whole) == timeless(killed)
        own = {path.name for path in (killed / folder).iterdir()} - {"0", "0-999"}
        assert bool(own) == earlier
        assert earlier or (killed / folder / "0-999" / "0-9").exists()

    def test_other_settings_are_refused(self, run: Run) -> None:
        run("parts", rounds=1)
        with pytest.raises(ConfigurationError, match=r"learning-rate: was 0\.05, is 0\.1"):
            run("parts", resume="parts", rounds=2, **{"learning-rate": 0.1})

    def test_a_refused_resume_leaves_the_run_as_it_was(self, run: Run) -> None:
        path = run("parts", rounds=2)
        before = {name: (path / name).read_text() for name in ("status.json", "summary.json", "config.toml")}
        with pytest.raises(ConfigurationError, match="has 2 rounds already, rounds = 1 asks for fewer"):
            run("parts", resume="parts", rounds=1)
        with pytest.raises(ConfigurationError, match="momentum"):
            run("parts", resume="parts", rounds=3, momentum=0.5)
        assert {name: (path / name).read_text() for name in before} == before

    def test_a_finished_run_can_be_finished_again(self, run: Run) -> None:
        path = run("parts", rounds=2)
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").unlink()  # as if it had been killed just before
        run("parts", resume="parts", rounds=2)
        assert json.loads((path / "summary.json").read_text())["final"] == summary["final"]
        assert [line["round"] for line in read_metrics(path)] == [1, 2]
        assert read_metrics(path)[-1].keys() >= {"training", "seen"}

    def test_init_is_refused_where_no_model_is_sent(self, run: Run) -> None:
        run("first", rounds=1)
        with pytest.raises(ConfigurationError, match="init: method 'local' sends no model"):
            run("second", rounds=1, method="local", init="first")

    def test_a_damaged_checkpoint_is_refused(self, run: Run) -> None:
        path = run("parts", rounds=1)
        checkpoint = next((path / "checkpoint").iterdir())
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
        with pytest.raises(RunError, match="damaged"):
            run("parts", resume="parts", rounds=2)

    @pytest.mark.parametrize(("method", "part", "fact"), [("fedavg", "", "identity"), ("fedprox", "own", "mu")])
    def test_a_run_of_an_earlier_version_is_refused(self, run: Run, method: str, part: str, fact: str) -> None:
        path = run("parts", rounds=1, method=method)
        checkpoint = read_checkpoint(path)
        del (checkpoint.facts[part] if part else checkpoint.facts)[fact]
        RunFolder(path, {}, "").save(checkpoint)
        with pytest.raises(RunError, match=f"run 'parts' is of an earlier version, whose checkpoints have no '{fact}'"):
            run("parts", resume="parts", rounds=2, method=method)

    def test_a_key_that_an_earlier_version_did_not_know_had_its_default(self, run: Run) -> None:
        path = run("parts", rounds=1, method="fedprox")
        written = path / "config.toml"
        lines = written.read_text().splitlines(keepends=True)
        written.write_text("".join(line for line in lines if not line.startswith(("mu =", "server-momentum ="))))
        assert not read_config(path).keys() & {"fedprox.mu", "server-momentum"}
        with pytest.raises(ConfigurationError, match=r"fedprox\.mu: was 0\.01, is 0\.5"):
            run("parts", resume="parts", rounds=2, method="fedprox", **{"fedprox.mu": 0.5})
        run("parts", resume="parts", rounds=2, method="fedprox")
        assert [line["round"] for line in read_metrics(path)] == [1, 2]

    def test_init_starts_from_another_runs_model(self, run: Run) -> None:
        first = run("first", rounds=1)
        second = run("second", rounds=1, init="first", seed=1, **{"server-learning-rate": 1e-12})
        for name, array in _model(first).items():
            np.testing.assert_allclose(_model(second)[name], array, atol=1e-6)


class TestFailures:
    def test_a_failing_client_is_named_and_left_out(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        _break_clients(monkeypatch, {"3": "the disk is on fire"})
        path = run("one", participation=1.0, rounds=1)
        assert json.loads((path / "status.json").read_text())["state"] == "completed"
        with (path / "clients.csv").open() as file:
            assert len(list(csv.DictReader(file))) == 6  # client 3 can still be tested
        monkeypatch.undo()
        keys: dict[str, Value] = {"participation": 1.0, "rounds": 1, "num-clients": 6, **SHORT}
        options = settings(**keys)
        federation, dataset = federate(options)
        start, total, weight = get_arrays(build("mlp", (1, 8, 8), 10, options.seed)), dict[str, np.ndarray](), 0
        for i in (0, 1, 2, 4, 5):
            model = build("mlp", (1, 8, 8), 10, options.seed)
            examples = simulated(federation, dataset, i).train
            training.train(
                model, examples, options, torch_generator(options.seed, "client", str(i), 1, "train"), task=TASK
            )
            weight += len(examples)
            for name, array in get_arrays(model).items():
                total[name] = total.get(name, 0) + len(examples) * (array.astype(float) - start[name])
        for name, array in _model(path).items():
            np.testing.assert_allclose(array, start[name] + total[name] / weight, atol=1e-6)

    def test_too_many_failures_end_the_run(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _break_clients(monkeypatch, {str(i): f"reason {i}" for i in range(4)})
        with pytest.raises(RunError, match=r"only 2 of 6 clients succeeded.*client 0: RuntimeError: reason 0"):
            run("many", participation=1.0, rounds=1)
        status = json.loads((tmp_path / "many" / "status.json").read_text())
        assert status["state"] == "failed"
        assert "reason 0" in status["error"]

    def test_a_round_needs_one_client_whatever_share_may_fail(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        _break_clients(monkeypatch, {str(i): f"reason {i}" for i in range(6)})
        with pytest.raises(RunError, match=r"only 0 of 6 clients succeeded, and a run needs at least one"):
            run("none", participation=1.0, rounds=1, **{"min-success": 0.0})

    def test_nan_is_left_out(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        original = training.train

        def poison(model: torch.nn.Module, *args: object, **kwargs: object) -> float:
            loss = original(model, *args, **kwargs)  # type: ignore[arg-type]
            if len(args[0]) == sizes[0]:  # type: ignore[arg-type]
                next(model.parameters()).data.fill_(float("nan"))
            return loss

        federation, _ = federate(settings(**{"num-clients": 6}))
        sizes = federation.train.sizes
        monkeypatch.setattr("florilegium.clients.core.base.train", poison)
        path = run("nan", participation=1.0, rounds=1)
        assert all(np.isfinite(array).all() for array in _model(path).values())

    def test_a_dead_worker_ends_a_simulation(self, run: Run) -> None:
        def die(message: Message) -> Message | None:
            if message.metadata.message_type != "train" or message.metadata.dst_node_id != FIRST_NODE:
                return None
            return Message(Error(ErrorCode.UNKNOWN, "ActorDiedError: the actor died"), reply_to=message)

        with pytest.raises(RunError, match=r"worker process of the simulation died.*ActorDiedError"):
            run("dead", intercept=die)

    def test_a_node_that_raises_counts_as_its_clients_failing(self, run: Run) -> None:
        def fail(message: Message) -> Message | None:
            if message.metadata.message_type != "train" or message.metadata.dst_node_id != FIRST_NODE:
                return None
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "boom"), reply_to=message)

        path = run("half", intercept=fail, participation=1.0, rounds=1, **{"min-success": 0.3})
        assert json.loads((path / "status.json").read_text())["state"] == "completed"

    def test_a_node_that_the_superlink_reports_lost_counts_as_its_clients_failing(self, run: Run) -> None:
        # The SuperLink answers in the node's stead, under its own id.
        def lose(message: Message) -> Message | None:
            if message.metadata.message_type != "train" or message.metadata.dst_node_id != FIRST_NODE:
                return None
            reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "node is gone"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
            return reply

        path = run("lost", intercept=lose, participation=1.0, rounds=1, **{"min-success": 0.3})
        assert json.loads((path / "status.json").read_text())["state"] == "completed"

    @pytest.mark.parametrize("fault", ["strangers", "nan", "shape"])
    def test_an_unusable_answer_counts_as_its_clients_failing(self, run: Run, fault: str) -> None:
        def spoil(message: Message) -> Message | None:
            if message.metadata.message_type != "train" or message.metadata.dst_node_id != FIRST_NODE + 1:
                return None
            clients = list(message.content["config"]["clients"])
            names = ["strange"] if fault == "strangers" else clients
            value = np.full((3,) if fault == "shape" else (10,), np.nan if fault == "nan" else 0.0, np.float32)
            numbers = dict.fromkeys(("num-examples", "weight", "bytes-up", "bytes-down", "loss"), [1.0] * len(names))
            return Message(Reply(names, {"fc3.bias": value}, numbers, {}).pack(), reply_to=message)

        path = run("spoilt", intercept=spoil, participation=1.0, rounds=1, **{"min-success": 0.3})
        assert all(np.isfinite(array).all() for array in _model(path).values())

    def test_failures_after_the_checkpoint_are_forgotten(self, run: Run) -> None:
        path = run("resumed", rounds=2)
        lines = [json.dumps({"round": n, "phase": "train", "client": "1", "reason": "away"}) + "\n" for n in (1, 2, 3)]
        torn = '{"round": 2, "ph'  # the power was cut, twice
        (path / "failures.jsonl").write_text(lines[0] + torn + lines[0] + "\0\n" + lines[1] + lines[2] + torn)
        run("resumed", rounds=3, resume="resumed")
        assert (path / "failures.jsonl").read_text() == "".join(lines[:2])

    def test_other_code_on_a_node_is_refused(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("florilegium.apps.client_app.code_of", lambda config: "other")
        with pytest.raises(RunError, match="runs other code"):
            run("stale")

    def test_no_node_at_all(self, run: Run) -> None:
        with pytest.raises(RunError, match=r"no node answered within 0\.2 s"):
            run("empty", nodes=0, **{"start-timeout": 0.2})

    @pytest.mark.parametrize(
        ("node", "said"),
        [
            ({"client-id": "a"}, "data-path: missing in the SuperNode's --node-config (found: client-id)"),
            ({"data-path": "/empty"}, "data-path: /empty holds no train.parquet, train.csv or pictures"),
            ({"data-path": "sites/a"}, "data-path: 'sites/a' is relative"),
            ({"data-path": "/a", "state": "/b"}, "there is no key 'state'; did you mean 'state-dir'?"),
            ({"data-path": "/a", "client-id": "../b"}, "--node-config: client-id: String should match"),
            (
                {"data-path": "/a", "client-id": "new"},
                "--node-config: client-id: Value error, 'new' is reserved for clients",
            ),
            ({"data-path": "/a", "labeled": "no"}, "--node-config: labeled: Input should be a valid boolean"),
        ],
    )
    def test_what_is_wrong_on_a_device_is_said_there_alone(
        self, tmp_path: Path, node: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        keys = config(**{"num-clients": 1, "start-timeout": 0.5, "runs-dir": str(tmp_path), "run-name": "lost"})
        with pytest.raises(RunError, match=r"node 100: .*the device's own configuration or data") as caught:
            run_app(keys, nodes=[node])
        assert said in caplog.text
        assert said not in str(caught.value)

    @pytest.mark.parametrize(("key", "value"), [("unseen-fraction", 0.5), ("labeled-fraction", 0.5)])
    def test_devices_are_not_shared_out(self, tmp_path: Path, key: str, value: float) -> None:
        federation, dataset = federate(settings(**{"num-clients": 2}))
        write_device(federation, dataset, 0, tmp_path / "data")
        keys = config(**{"num-clients": 1, key: value, "runs-dir": str(tmp_path), "run-name": "shared"})
        with pytest.raises(ConfigurationError, match=key):
            run_app(keys, nodes=[{"client-id": "a", "data-path": str(tmp_path / "data")}])

    def test_a_full_disk_is_a_clear_error(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("florilegium.common.files.save_file", full)
        with pytest.raises(RunError, match=r"cannot write .*checkpoint.*No space left on device"):
            run("full")
        assert not list((tmp_path / "full" / "checkpoint").iterdir())

    def test_a_run_name_is_not_used_twice(self, run: Run) -> None:
        run("twice", rounds=1)
        with pytest.raises(ConfigurationError, match="run-name: there is already a run"):
            run("twice", rounds=1)

    def test_a_run_that_died_before_its_first_checkpoint_begins_anew_under_its_name(self, run: Run) -> None:
        expected = read_metrics(run("whole", rounds=1))
        died = run("died", rounds=1)
        (died / "summary.json").unlink()
        for file in (died / "checkpoint").iterdir():
            file.unlink()
        (died / "failures.jsonl").write_text("of the attempt that died")
        again = run("died", rounds=1)
        assert not (again / "failures.jsonl").exists()
        assert [line["seen"] for line in read_metrics(again)] == [line["seen"] for line in expected]


class TestOutput:
    def test_the_folder_holds_what_the_documentation_says(self, run: Run) -> None:
        path = run(
            "out", rounds=4, method="fedprox", **{"evaluate-every": 2, "finetune-epochs": 1, "unseen-fraction": 0.34}
        )
        stored = read_config(path)
        assert stored["method"] == "fedprox"
        assert stored["fedprox.mu"] == 0.01
        lines = read_metrics(path)
        assert [line["round"] for line in lines] == [1, 2, 3, 4]
        assert [line["round"] for line in read_evaluations(path)] == [2, 4]
        assert lines[-1].keys() >= {"seconds", "bytes_down", "bytes_up", "seen", "unseen"}
        summary = json.loads((path / "summary.json").read_text())
        assert summary["final"]["unseen"].keys() >= {
            "accuracy", "accuracy_global", "accuracy_weighted", "std", "worst_decile", "loss",
        }  # fmt: skip
        assert summary["fedprox"] == {"mu": 0.01}

    def test_figures_are_those_of_the_clients(self, run: Run) -> None:
        path = run("figures", rounds=2, **{"num-clients": 12})
        with (path / "clients.csv").open() as file:
            rows = list(csv.DictReader(file))
        accuracy = np.array([float(row["accuracy"]) for row in rows])
        examples = np.array([float(row["test_examples"]) for row in rows])
        final = json.loads((path / "summary.json").read_text())["final"]["seen"]
        assert final["accuracy"] == pytest.approx(accuracy.mean())
        assert final["accuracy_weighted"] == pytest.approx((accuracy * examples).sum() / examples.sum())
        assert final["std"] == pytest.approx(accuracy.std())
        assert final["worst_decile"] == pytest.approx(np.sort(accuracy)[:2].mean())  # ⌈12 / 10⌉ = 2 clients

    def test_bytes_are_those_of_the_model(self, run: Run) -> None:
        path = run("bytes", rounds=2)  # cohorts of 3
        parameters = 64 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10
        summary = json.loads((path / "summary.json").read_text())
        assert summary["bytes_down"] == summary["bytes_up"] == 2 * 3 * 4 * parameters

    def test_evaluating_a_sample_of_clients(self, run: Run) -> None:
        path = run("sample", **{"evaluate-clients": 2, "unseen-fraction": 0.5})
        with (path / "clients.csv").open() as file:
            groups = [row["group"] for row in csv.DictReader(file)]
        assert sorted(groups) == ["seen", "seen", "unseen", "unseen"]

    def test_final_participation_asks_every_client_in_the_last_round(self, tmp_path: Path) -> None:
        keys = {"cohort-size": 2, "final-participation": 1.0, "num-clients": 6, "rounds": 3, "evaluate-every": 0,
                "runs-dir": str(tmp_path), "run-name": "all-at-last"}  # fmt: skip
        asked = {1: 0, 2: 0, 3: 0}
        for message in run_app(config(**keys)).sent:
            if message.metadata.message_type == "train":
                asked[message.content["config"]["round"]] += len(message.content["config"]["clients"])
        assert asked == {1: 2, 2: 2, 3: 6}

    def test_unseen_and_unlabeled_clients_are_never_trained_on(self, tmp_path: Path) -> None:
        keys = {"unseen-fraction": 0.3, "labeled-fraction": 0.5, "rounds": 3, "participation": 1.0, "num-clients": 10,
                "evaluate-every": 0, "runs-dir": str(tmp_path), "run-name": "kept-out"}  # fmt: skip
        grid = run_app(config(**keys))
        federation, _ = federate(settings(**keys))
        asked = {
            int(c) for m in grid.sent if m.metadata.message_type == "train" for c in m.content["config"]["clients"]
        }
        assert asked == set(np.flatnonzero(~federation.unseen & federation.labeled))
        assert len(asked) == 4  # 7 seen clients, half of them (rounded) labeled


def _die_in_round_5(message: Message) -> Message | None:
    if message.metadata.message_type == "train" and message.content["config"]["round"] == 5:
        raise KeyboardInterrupt
    return None


def _break_clients(monkeypatch: pytest.MonkeyPatch, reasons: dict[str, str]) -> None:
    from florilegium.clients.core.base import BaseClient

    original = BaseClient.descend

    def descend(self: BaseClient, *args: object, **kwargs: object) -> float:
        if self.client_id in reasons:
            raise RuntimeError(reasons[self.client_id])
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(BaseClient, "descend", descend)


class TestValidation:
    KEYS: ClassVar[dict[str, Value]] = {"validation-fraction": 0.25, "evaluate-every": 1, "participation": 1.0}

    def test_examples_are_held_back_from_training_and_measured(self, run: Run) -> None:
        """The figures are of the final model on examples that are not among those trained on."""
        path = run("held", **self.KEYS)
        federation, dataset = federate(settings(**{"num-clients": 6}))
        network = build("mlp", (1, 8, 8), 10, 1)
        set_arrays(network, _model(path))
        judged, counts = [], []
        for client in range(6):
            whole = simulated(federation, dataset, client)
            part = whole.hold_back(0.25, torch_generator(1, "validation", str(client)), TASK)
            assert len(part.validation) == int(0.25 * len(whole.train))
            rows = {tuple(row.flatten().tolist()) for row in part.train.x}
            rest = {tuple(row.flatten().tolist()) for row in part.validation.x}
            assert rows | rest == {tuple(row.flatten().tolist()) for row in whole.train.x}
            assert len(part.train) + len(part.validation) == len(whole.train)
            judged.append([*training.evaluate(network, part.validation, task=TASK).values()])
            counts.append(len(part.train))
        line = read_metrics(path)[-1]["seen"]
        found = [line["validation_loss"], line["validation_accuracy"]]
        assert found == pytest.approx(np.mean(judged, axis=0).tolist(), rel=1e-4)
        assert line["validation_loss_median"] == pytest.approx(np.median(judged, axis=0)[0], rel=1e-4)
        with (path / "clients.csv").open() as file:
            rows_of = list(csv.DictReader(file))
        assert all(float(row["validation_loss"]) > 0 for row in rows_of)
        assert [int(row["train_examples"]) for row in rows_of] == counts

    def test_training_stops_when_the_loss_has_not_fallen(self, run: Run) -> None:
        """With so high a learning rate the loss soon rises; the run ends a round after `patience` evaluations."""
        path = run("early", rounds=40, patience=2, **{**self.KEYS, "learning-rate": 3.0, "max-grad-norm": 1.0})
        losses = [line["seen"]["validation_loss_median"] for line in read_metrics(path)]
        assert len(losses) < 40
        best = int(np.argmin(losses[:-1]))
        assert len(losses) == best + 1 + 2 + 1
        assert json.loads((path / "summary.json").read_text())["rounds"] == len(losses)

    def test_without_patience_it_does_not(self, run: Run) -> None:
        path = run("late", rounds=8, **{**self.KEYS, "learning-rate": 3.0, "max-grad-norm": 1.0})
        assert len(read_metrics(path)) == 8

    def test_resumed_run_stops_where_the_whole_one_does(self, run: Run) -> None:
        keys: dict[str, Value] = {**self.KEYS, "learning-rate": 3.0, "max-grad-norm": 1.0, "patience": 2}
        whole = read_metrics(run("whole", rounds=40, **keys))
        run("part", rounds=len(whole) - 2, **keys)
        assert len(read_metrics(run("part", resume="part", rounds=40, **keys))) == len(whole)

    def test_patience_needs_a_validation_loss(self, run: Run) -> None:
        with pytest.raises(ConfigurationError, match="validation-fraction"):
            run("refused", patience=2)
        with pytest.raises(ConfigurationError, match="final-participation"):
            run("last", patience=2, **{**self.KEYS, "final-participation": 1.0})
        with pytest.raises(ConfigurationError, match="no targets"):
            run("other", method="k-fed", model="centers", **self.KEYS)
        with pytest.raises(ConfigurationError, match="validate with"):
            run("small", patience=1, rounds=3, **{**self.KEYS, "validation-fraction": 0.001})


def test_messages_name_their_round_for_the_logs_of_devices(tmp_path: Path) -> None:
    keys = config(**{"num-clients": 3, "rounds": 3, "evaluate-every": 2, "runs-dir": str(tmp_path), **SHORT})
    named: list[tuple[str, int]] = [
        (message.metadata.group_id, int(message.content["config"]["round"]))  # type: ignore[arg-type]
        for message in run_app(keys).sent
        if message.metadata.message_type in ("train", "evaluate")
    ]
    assert {number for _, number in named} == {1, 2, 3}
    assert all(group == str(number) for group, number in named)
