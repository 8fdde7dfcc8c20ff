"""Model decoupling: what travels, what stays, and the limits in which the methods become simpler ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from florilegium.clients.core.training import Group, features, only_trainable, train
from florilegium.clients.core.wire import unpack
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import torch_generator
from florilegium.models.blocks import block_names, block_of, cut, last_blocks
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import run_app
from tests.support import TASK, Value, config, make_client, perform, settings

Run = Callable[..., Path]
HEAD = {"fc3.weight", "fc3.bias"}
DECOUPLED = ("fedper", "fedrep", "fedbabu", "lg-fedavg")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs the app under a name, and returns the run's folder."""

    def start(name: str, **keys: Value) -> Path:
        keys = {"num-clients": 4, "rounds": 2, "evaluate-every": 0, "participation": 1.0, "local-epochs": 1,
                "batch-size": 32, **keys}  # fmt: skip
        names = {} if "resume" in keys else {"run-name": name}
        run_app(config(**{**keys, **names, "runs-dir": str(tmp_path)}))
        return tmp_path / name

    return start


def _model(path: Path) -> dict[str, np.ndarray]:
    return dict(read_checkpoint(path).arrays)


def _state(path: Path, client: int) -> dict[str, np.ndarray]:
    return load_file(sorted((path / "clients" / str(client)).glob("state-*"))[-1])


def _initial() -> dict[str, np.ndarray]:
    return get_arrays(build("mlp", (1, 8, 8), 10, 1))


class TestWhatTravels:
    @pytest.mark.parametrize("method", DECOUPLED)
    def test_only_shared_blocks_cross_the_wire(self, method: str, tmp_path: Path) -> None:
        grid = run_app(config(method=method, num_clients=4, rounds=2, runs_dir=str(tmp_path), run_name="r"))
        expected = HEAD if method == "lg-fedavg" else _initial().keys() - HEAD
        for message in grid.sent:
            if message.metadata.message_type in ("train", "evaluate"):
                assert set(unpack(message.content["arrays"])) == expected
        trained = [m for m in grid.received if m.metadata.message_type == "train"]
        assert trained
        for message in trained:
            assert set(unpack(message.content["arrays"])) == expected

    @pytest.mark.parametrize("method", ["fedper", "fedrep", "lg-fedavg"])
    def test_the_personal_part_lies_with_the_client_and_differs_between_clients(self, method: str, run: Run) -> None:
        path = run("own", method=method)
        personal = _initial().keys() - HEAD if method == "lg-fedavg" else HEAD
        first, second = _state(path, 0), _state(path, 1)
        assert set(first) == set(second) == personal
        assert all(not np.array_equal(first[name], second[name]) for name in personal)

    def test_more_blocks_can_be_personal(self, run: Run) -> None:
        path = run("two", method="fedper", **{"fedper.head-blocks": 2})
        assert block_names(_model(path)) == ["fc1"]
        assert block_names(sorted(_state(path, 0))) == ["fc2", "fc3"]

    def test_a_body_must_be_left(self, run: Run) -> None:
        with pytest.raises(ConfigurationError, match=r"fedper.head-blocks: 3 .* it has 3 \(fc1, fc2, fc3\)"):
            run("none-left", method="fedper", **{"fedper.head-blocks": 3})


class TestLimits:
    def test_one_client_alone_makes_fedper_local_training(self, run: Run) -> None:
        # With one client the mean of the bodies is its own body, so nothing is left of the federation.
        keys: dict[str, Value] = {"num-clients": 1, "partitioner": "iid", "rounds": 3}
        fedper, local = run("fedper", method="fedper", **keys), run("local", method="local", **keys)
        together = _model(fedper) | _state(fedper, 0)
        for name, array in _state(local, 0).items():
            np.testing.assert_allclose(together[name], array, atol=1e-6)

    def test_fedbabu_never_moves_the_head(self, run: Run) -> None:
        path = run("fedbabu", method="fedbabu")
        assert not list((path / "clients").glob("*/state-*"))
        # What it does to the body is training with the head's learning rate at zero.
        keys: dict[str, Value] = {"num-clients": 1, "partitioner": "iid", "local-epochs": 2}
        options = settings(participation=1.0, batch_size=32, **keys)
        path = run("one", method="fedbabu", rounds=1, **keys)
        model = build("mlp", (1, 8, 8), 10, 1)
        body, _ = cut(model, ["fc3"])
        train(
            model,
            simulated(*federate(options), 0).train,
            options,
            torch_generator(1, "client", "0", 1, "train"),
            groups=[Group(list(body.parameters()), options.learning_rate)],
            task=TASK,
        )
        expected = get_arrays(model)
        for name in HEAD:
            np.testing.assert_array_equal(expected[name], _initial()[name])
        for name, array in _model(path).items():
            np.testing.assert_allclose(array, expected[name], atol=1e-6)

    def test_fedrep_without_head_epochs_trains_the_body_as_fedbabu_does(self, run: Run) -> None:
        # The head stays θ₀ then; only the order of the examples differs, which one full batch makes irrelevant.
        keys: dict[str, Value] = {"batch-size": 10_000}
        fedrep = run("fedrep", method="fedrep", **keys, **{"fedrep.head-epochs": 0, "fedrep.body-epochs": 2})
        fedbabu = run("fedbabu", method="fedbabu", **keys, **{"local-epochs": 2})
        for name, array in _model(fedbabu).items():
            np.testing.assert_allclose(_model(fedrep)[name], array, atol=1e-6)

    def test_fedrep_trains_its_head_on_the_received_body(self, run: Run) -> None:
        # Head and body by hand: the head on frozen features, then the body under the new head.
        path = run(
            "by-hand", method="fedrep", rounds=1,
            **{"num-clients": 1, "partitioner": "iid", "batch-size": 10_000, "fedrep.head-epochs": 3},
        )  # fmt: skip
        options = settings(num_clients=1, partitioner="iid")
        data = simulated(*federate(options), 0).train
        model = build("mlp", (1, 8, 8), 10, 1)
        body, head = cut(model, ["fc3"])
        for steps, part in ((3, head), (1, body)):
            for _ in range(steps):
                loss = torch.nn.functional.cross_entropy(model(data.x), data.y)
                gradients = torch.autograd.grad(loss, list(part.parameters()))
                with torch.no_grad():
                    for parameter, gradient in zip(part.parameters(), gradients, strict=True):
                        parameter -= options.learning_rate * gradient
        for name, array in (_model(path) | _state(path, 0)).items():
            np.testing.assert_allclose(array, get_arrays(model)[name], atol=1e-6)

    def test_ditto_without_a_pull_is_local_training_beside_fedavg(self, run: Run) -> None:
        # One step over all data, so that the order of the examples, which the purposes draw apart, does not matter.
        keys: dict[str, Value] = {"local-epochs": 2, "batch-size": 10_000}
        ditto = run("ditto", method="ditto", **keys, **{"ditto.regularization": 0.0})
        fedavg, local = run("fedavg", method="fedavg", **keys), run("local", method="local", **keys)
        for name, array in _model(fedavg).items():
            np.testing.assert_array_equal(_model(ditto)[name], array)
        for name, array in _state(local, 2).items():
            np.testing.assert_allclose(_state(ditto, 2)[name], array, atol=1e-6)

    def test_dittos_step_is_that_of_the_regularised_objective(self, run: Run) -> None:
        # Round 2, one step: v ← v − η(∇F(v) + λ(v − w¹)), with v from round 1 and the received w¹.
        lam, eta = 0.7, 0.05
        keys: dict[str, Value] = {"method": "ditto", "local-epochs": 1, "batch-size": 10_000,
                                  "ditto.regularization": lam}  # fmt: skip
        w1, v1 = _model(run("one", rounds=1, **keys)), _state(run("one-again", rounds=1, **keys), 0)
        v2 = _state(run("two", rounds=2, **keys), 0)
        model = build("mlp", (1, 8, 8), 10, 1)
        set_arrays(model, v1)
        data = simulated(*federate(settings(num_clients=4)), 0).train
        torch.nn.functional.cross_entropy(model(data.x), data.y).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            expected = v1[name] - eta * (parameter.grad.numpy() + lam * (v1[name] - w1[name]))
            np.testing.assert_allclose(v2[name], expected, atol=1e-6)


def test_a_personal_model_that_diverges_is_named_and_never_kept(run: Run, tmp_path: Path) -> None:
    keys: dict[str, Value] = {"ditto.regularization": 1e6, "learning-rate": 0.5, "rounds": 1}
    with pytest.raises(RunError, match="of the client's own 'state' has NaN or infinity"):
        run("diverged", method="ditto", **keys)
    assert not list((tmp_path / "diverged" / "clients").glob("*/*"))


class TestEvaluation:
    @pytest.mark.parametrize("method", [*DECOUPLED, "ditto"])
    def test_personal_models_beat_chance_by_far(self, method: str, run: Run) -> None:
        # Two or three classes per client: chance is at most a half; over seeds 1 to 3 all end above 0.93.
        keys: dict[str, Value] = {"batch-size": 10, "finetune-epochs": 2 if method == "fedbabu" else 0}
        path = run("learned", method=method, rounds=8, **keys)
        assert read_metrics(path)[-1]["seen"]["accuracy"] > 0.7

    @pytest.mark.parametrize(("name", "part"), [("mlp", "whole"), ("mlp", "head"), ("mlp", "body"), ("cnn-bn", "head")])
    def test_fedbabus_step_before_a_test_is_in_the_part_that_is_named(
        self, name: str, part: str, tmp_path: Path
    ) -> None:
        """One full-batch step in training mode: θ − η∇F(θ) in the arrays of that part, θ in the others."""
        keys: dict[str, Value] = {"method": "fedbabu", "model": name, "finetune-epochs": 1, "batch-size": 100,
                                  "learning-rate": 0.3, "fedbabu.finetune": part}  # fmt: skip
        data = simulated(*federate(settings(num_clients=40)), 0).train
        client = make_client(data, build(name, (1, 8, 8), 10, 1), folder=tmp_path, **keys)
        model = build(name, (1, 8, 8), 10, 1).train()
        start = get_arrays(model)
        (block,) = last_blocks(start, 1, "")
        head = {array for array in start if block_of(array) == block}
        torch.nn.functional.cross_entropy(model(data.x), data.y).backward()
        perform(client, "test", {array: values for array, values in start.items() if array not in head})
        tuned = {"whole": set(start), "head": head, "body": start.keys() - head}[part]
        for array, parameter in model.named_parameters():
            assert parameter.grad is not None
            expected = start[array] - (0.3 * parameter.grad.numpy() if array in tuned else 0)
            np.testing.assert_allclose(get_arrays(client.model)[array], expected, atol=1e-6)

    @pytest.mark.parametrize("part", ["whole", "head", "body"])
    def test_fedbabu_tunes_what_it_was_told(self, part: str, run: Run) -> None:
        path = run(
            part, method="fedbabu", rounds=8, **{"batch-size": 10, "finetune-epochs": 5, "fedbabu.finetune": part}
        )
        figures = read_metrics(path)[-1]["seen"]
        assert figures["accuracy"] > figures["accuracy_global"] + 0.05

    def test_ditto_measures_the_personal_model_beside_the_received_one(self, tmp_path: Path) -> None:
        data = simulated(*federate(settings(num_clients=40)), 0).train
        client = make_client(data, build("mlp", (1, 8, 8), 10, 1), folder=tmp_path, method="ditto")
        received, own = _initial(), {name: 1.5 * array for name, array in _initial().items()}
        client.state.save(own)
        metrics = perform(client, "test", received, round=2).metrics
        model = build("mlp", (1, 8, 8), 10, 1)
        for arrays, suffix in ((received, "_global"), (own, "")):
            set_arrays(model, arrays)
            outputs = model(data.x).detach()
            assert metrics["loss" + suffix] == pytest.approx(torch.nn.functional.cross_entropy(outputs, data.y).item())
            right = (outputs.argmax(dim=1) == data.y).float().mean().item()
            assert metrics["accuracy" + suffix] == pytest.approx(right)
        for name, array in get_arrays(client.predictor).items():
            np.testing.assert_array_equal(array, own[name])

    @pytest.mark.parametrize("method", DECOUPLED)
    def test_shared_and_own_blocks_start_from_the_model_of_another_run(self, method: str, run: Run) -> None:
        """Of a client that has trained, and, in tests, of one that has not: both do as FedAvg's own model does."""
        keys: dict[str, Value] = {"num-clients": 5, "unseen-fraction": 0.2, "fedrep.new-head-epochs": 0}
        whole = run("whole", method="fedavg", **keys)
        path = run("again", method=method, init="whole", rounds=1, **keys, **{"learning-rate": 1e-9})
        trained, figures = _model(whole), [read_metrics(p)[-1] for p in (whole, path)]
        for name, array in _model(path).items():
            np.testing.assert_allclose(array, trained[name], atol=1e-6)
        if method != "fedbabu":
            client = min(int(folder.name) for folder in (path / "clients").iterdir() if folder.name.isdigit())
            for name, array in _state(path, client).items():
                np.testing.assert_allclose(array, trained[name], atol=1e-6)
        for group in ("seen", "unseen"):
            assert figures[1][group]["loss"] == pytest.approx(figures[0][group]["loss"], rel=1e-4)

    def test_what_clients_start_from_outlasts_a_break(self, run: Run, tmp_path: Path) -> None:
        """In the second round clients take part that were not in the first one's cohort."""
        run("whole", method="fedavg")
        keys: dict[str, Value] = {"method": "lg-fedavg", "init": "whole", "participation": 0.25, "num-clients": 4}
        paths = [run("straight", rounds=4, **keys), run("broken", rounds=1, **keys)]
        run("broken", rounds=4, resume="broken", **keys)
        for name, array in _model(paths[0]).items():
            np.testing.assert_array_equal(array, _model(paths[1])[name])
        assert read_metrics(paths[0])[-1]["seen"] == read_metrics(paths[1])[-1]["seen"]


@pytest.mark.parametrize("method", ["fedper", pytest.param("ditto", marks=pytest.mark.long)])
def test_a_run_takes_nothing_from_another_of_its_name(method: str, tmp_path: Path) -> None:
    """The server has lost the first run, or is another one; the clients still have what it left them."""
    keys: dict[str, Value] = {"method": method, "num-clients": 4, "participation": 1.0, "run-name": "name"}
    for server, state, rounds in (("a", "kept", 1), ("b", "kept", 2), ("c", "empty", 2)):
        folders = {"runs-dir": str(tmp_path / server), "state-dir": str(tmp_path / state)}
        run_app(config(**keys, **folders, rounds=rounds))
    again, fresh = ((tmp_path / server / "name" / "clients.csv").read_text() for server in "bc")
    assert again == fresh
    for name, array in _model(tmp_path / "b" / "name").items():
        np.testing.assert_array_equal(array, _model(tmp_path / "c" / "name")[name])


class TestTools:
    def test_the_last_blocks_keep_a_body(self) -> None:
        assert last_blocks(_initial(), 2, "key") == {"fc2", "fc3"}
        assert last_blocks(_initial(), 0, "key") == frozenset()

    def test_only_last_blocks_can_be_cut_off(self) -> None:
        with pytest.raises(ValueError, match="are not the last ones"):
            cut(build("mlp", (1, 8, 8), 10, 1), ["fc1"])

    def test_features_are_what_the_body_returns_batch_by_batch(self) -> None:
        model = build("mlp", (1, 8, 8), 10, 1)
        x = torch.randn(600, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        body, head = cut(model, ["fc3"])
        got = features(body, Examples(x, torch.zeros(600, dtype=torch.int64)))
        torch.testing.assert_close(head(got), model(x))

    def test_frozen_parameters_are_given_back(self) -> None:
        model = build("mlp", (1, 8, 8), 10, 1)
        first = next(iter(model.parameters()))
        with only_trainable(model, [first]):
            assert [p.requires_grad for p in model.parameters()] == [True] + [False] * 5
        assert all(p.requires_grad for p in model.parameters())

    def test_groups_have_their_own_rates_and_weights_scale_the_loss(self) -> None:
        model = build("mlp", (1, 8, 8), 10, 1)
        body, head = cut(model, ["fc3"])
        start = get_arrays(model)
        data = simulated(*federate(settings(num_clients=4)), 0).train
        ω = torch.linspace(0.0, 2.0, len(data))
        loss = (ω * torch.nn.functional.cross_entropy(model(data.x), data.y, reduction="none")).sum() / len(data)
        loss.backward()
        gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}
        options = settings(batch_size=10_000, local_epochs=1)
        groups = [Group(list(body.parameters()), 0.3), Group(list(head.parameters()), 0.1)]
        train(model, data, options, torch.Generator().manual_seed(1), groups=groups, weights=ω, task=TASK)
        for name, array in get_arrays(model).items():
            rate = 0.1 if name in HEAD else 0.3
            np.testing.assert_allclose(array, start[name] - rate * gradients[name], atol=1e-6)


OWN_STAGES: dict[str, Value] = {
    "ppfe.personal-blocks": "1,1", "ppfe.stage-rounds": "1,1", "ppfe.reduction": "none", "rounds": 2,
}  # fmt: skip


@pytest.mark.parametrize(("method", "keys"), [("apfl", {}), ("gpfl", {}), ("ppfe", OWN_STAGES)])
def test_methods_whose_clients_begin_with_the_seeds_network_refuse_another_runs_model(
    method: str, keys: dict[str, Value], run: Run
) -> None:
    run("whole", method="fedavg")
    with pytest.raises(ConfigurationError, match=r"init: .* would start from this run's seed"):
        run("again", method=method, init="whole", **keys)
