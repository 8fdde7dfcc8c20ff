"""Per-FedAvg, pFedMe, kNN-Per, FedRep's new heads: against autograd, limits, brute force; clients never seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from florilegium.apps.runs.personal import personalise
from florilegium.clients.core.export import load_model
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import torch_generator
from florilegium.common.settings import Value
from florilegium.models.neighbours import Neighbours, index, probabilities
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import run_app
from tests.support import TASK, config, make_client, perform, settings

Run = Callable[..., Path]
ONE_CLIENT: dict[str, Value] = {
    "num-clients": 6, "cohort-size": 1, "rounds": 1, "evaluate-every": 0, "model": "linear", "momentum": 0.0,
    "batch-size": 10_000, "local-steps": 1, "learning-rate": 0.5,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs the app under a name, and returns the run's folder: ``tmp_path / name``."""

    def start(name: str, nodes: int = 2, **keys: Value) -> Path:
        overrides = {"num-clients": 6, "rounds": 2, "evaluate-every": 0, "participation": 0.5, "local-epochs": 1,
                     "batch-size": 32, **keys}  # fmt: skip
        names = {} if "resume" in keys else {"run-name": name}
        run_app(config(**{**overrides, **names, "runs-dir": str(tmp_path)}), nodes)
        return tmp_path / name

    return start


def _model(path: Path) -> dict[str, np.ndarray]:
    return dict(read_checkpoint(path).arrays)


def _same(one: Path, other: Path, tolerance: float = 0.0) -> None:
    for name, array in _model(one).items():
        np.testing.assert_allclose(array, _model(other)[name], atol=tolerance, rtol=0)


def _trained(path: Path) -> str:
    """Return the one client that has a state."""
    (folder,) = (folder for folder in (path / "clients").iterdir() if not folder.name.startswith("_"))
    return folder.name


def _examples(client: str) -> Examples:
    return simulated(*federate(settings(**ONE_CLIENT)), int(client)).train


class TestPerFedAvg:
    def _all(self) -> list[Examples]:
        return [_examples(str(i)) for i in range(6)]

    @pytest.mark.parametrize("hessian", ["first-order", "hessian-free"])
    def test_a_full_batch_step_is_that_of_the_paper(self, hessian: str, run: Run) -> None:
        # The only batch is all the data, so D = D' = D''. The Hessian's product is autograd's own.
        α, β = 0.3, 0.5
        keys = {**ONE_CLIENT, "method": "per-fedavg", "per-fedavg.hessian": hessian, "per-fedavg.adaptation-rate": α}
        found = _model(run("one", **keys, **{"per-fedavg.difference": 0.01}))
        model = build("linear", (1, 8, 8), 10, 1)
        names, w = zip(*((n, p.detach().clone().requires_grad_()) for n, p in model.named_parameters()), strict=True)

        def f(parameters: tuple[Tensor, ...], data: Examples) -> Tensor:
            return cross_entropy(functional_call(model, dict(zip(names, parameters, strict=True)), data.x), data.y)

        distances = []
        for data in self._all():  # one of them was drawn
            g = torch.autograd.grad(f(w, data), w, create_graph=True)
            adapted = tuple((p - α * d).detach().requires_grad_() for p, d in zip(w, g, strict=True))
            step = torch.autograd.grad(f(adapted, data), adapted)
            if hessian == "hessian-free":
                product = torch.autograd.grad(g, w, step)
                step = tuple(s - α * h for s, h in zip(step, product, strict=True))
            expected = {n: (p - β * s).detach().numpy() for n, p, s in zip(names, w, step, strict=True)}
            distances.append(max(np.abs(found[n] - expected[n]).max() for n in names))
        assert sorted(distances)[0] < 2e-5  # float32; what the difference of gradients adds to it included
        assert sorted(distances)[1] > 1e-4

    def test_every_gradient_has_a_batch_of_its_own(self, tmp_path: Path) -> None:
        """Two batches of four: D is the first of one order; D' and D'' are both of another, for the whole training."""
        keys = {**ONE_CLIENT, "method": "per-fedavg", "per-fedavg.hessian": "hessian-free", "batch-size": 4}
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(8, 1, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator)
        network = build("linear", (1, 8, 8), 10, 1)
        client = make_client(Examples(x, y), network, folder=tmp_path, **keys)
        asked: list[list[int]] = []
        whole = network.forward

        def listening(inputs: Tensor) -> Tensor:
            asked.append([int((x == one).flatten(1).all(dim=1).nonzero()) for one in inputs])
            return whole(inputs)

        network.forward = listening  # type: ignore[method-assign]
        perform(client, "train", {n: p.detach().numpy().copy() for n, p in network.named_parameters()})
        first, after_adaptation, above, below = asked
        assert above == below
        assert sorted(after_adaptation + above) == list(range(8))
        assert {*first} not in ({*after_adaptation}, {*above})

    def test_the_second_derivative_matters(self, run: Run) -> None:
        keys = {**ONE_CLIENT, "method": "per-fedavg", "per-fedavg.adaptation-rate": 0.3}
        first, second = (run(h, **keys, **{"per-fedavg.hessian": h}) for h in ("first-order", "hessian-free"))
        assert max(np.abs(_model(first)[n] - _model(second)[n]).max() for n in _model(first)) > 1e-4

    def test_without_adaptation_it_is_fedavg(self, run: Run) -> None:
        keys = {**ONE_CLIENT, "local-steps": 3, "rounds": 2}
        _same(run("avg", **keys), run("per", method="per-fedavg", **keys, **{"per-fedavg.adaptation-rate": 1e-9}), 1e-6)

    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_a_test_is_after_plain_steps(self, tmp_path: Path, optimizer: str) -> None:
        """θ ← θ − α∇f(θ) twice, whatever optimizer, momentum, weight decay and rate the outer steps have."""
        keys = {**ONE_CLIENT, "method": "per-fedavg", "optimizer": optimizer, "weight-decay": 0.1, "finetune-epochs": 2,
                "per-fedavg.adaptation-rate": 0.3, "learning-rate-decay": 0.1, "decay-rounds": 1}  # fmt: skip
        keys |= {"momentum": 0.9} if optimizer == "sgd" else {}
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(8, 1, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator)
        client = make_client(Examples(x, y), build("linear", (1, 8, 8), 10, 1), folder=tmp_path, **keys)
        start = get_arrays(client.model)
        perform(client, "test", start, round=5)
        (w, b) = (torch.from_numpy(array.copy()).requires_grad_() for array in start.values())
        for _ in range(2):
            steps = torch.autograd.grad(cross_entropy(x.flatten(1) @ w.T + b, y), (w, b))
            (w, b) = ((p - 0.3 * step).detach().requires_grad_() for p, step in zip((w, b), steps, strict=True))
        for found, expected in zip(get_arrays(client.model).values(), (w, b), strict=True):
            np.testing.assert_allclose(found, expected.detach(), atol=1e-6)

    def test_clients_adapt_before_a_test(self, run: Run) -> None:
        keys = {"method": "per-fedavg", "rounds": 5, "unseen-fraction": 0.34, "per-fedavg.adaptation-rate": 0.05}
        figures = read_metrics(run("adapt", **keys, **{"finetune-epochs": 5}))[-1]
        for group in ("seen", "unseen"):
            assert figures[group]["accuracy"] > figures[group]["accuracy_global"]


class TestPFedMe:
    def test_one_personal_step_is_gradient_descent(self, run: Run) -> None:
        # K = 1: θ̃ = w − γ∇f(w), so w ← w − ηλγ∇f(w).
        keys: dict[str, Value] = {"momentum": 0.0, "local-steps": 4}
        η, λ, γ = 0.1, 5.0, 0.04
        avg = run("avg", **keys, **{"learning-rate": η * λ * γ})
        me = run(
            "me", method="pfedme", **keys,
            **{"learning-rate": η, "pfedme.regularization": λ, "pfedme.personal-steps": 1,
               "pfedme.personal-learning-rate": γ},
        )  # fmt: skip
        _same(avg, me, 1e-6)

    def test_with_many_steps_the_personal_model_solves_its_problem(self, run: Run) -> None:
        # ∇f(θ̃) + λ(θ̃ − w) = 0 at the minimum, and w then moves by −ηλ(w − θ̃).
        λ, η = 2.0, 0.1
        keys = {**ONE_CLIENT, "method": "pfedme", "pfedme.regularization": λ, "learning-rate": η}
        path = run("many", **keys, **{"pfedme.personal-steps": 500, "pfedme.personal-learning-rate": 0.05})
        client = _trained(path)
        (file,) = (path / "clients" / client).glob("*.safetensors")
        θ, model, data = load_file(file), build("linear", (1, 8, 8), 10, 1), _examples(client)
        w = {name: p.detach().clone() for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.data.copy_(torch.from_numpy(θ[name]))
        cross_entropy(model(data.x), data.y).backward()
        for name, p in model.named_parameters():
            assert p.grad is not None
            np.testing.assert_allclose(p.grad + λ * (p.detach() - w[name]), np.zeros(p.shape), atol=1e-5)
            moved = w[name] - η * λ * (w[name] - p.detach())
            np.testing.assert_allclose(_model(path)[name], moved.numpy(), atol=1e-6)

    def test_a_new_clients_model_follows_the_same_objective(self, tmp_path: Path) -> None:
        """θ ← θ − γ(∇f(θ) + λ(θ − w)) from θ = w, three full batches; γ is the personal learning rate."""
        λ, γ = 3.0, 0.2
        keys = {**ONE_CLIENT, "method": "pfedme", "finetune-epochs": 3, "pfedme.regularization": λ,
                "pfedme.personal-learning-rate": γ}  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(8, 1, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator)
        client = make_client(Examples(x, y), build("linear", (1, 8, 8), 10, 1), folder=tmp_path, **keys)
        start = get_arrays(client.model)
        perform(client, "test", start, round=5)
        w = [torch.from_numpy(array.copy()) for array in start.values()]
        θ = [p.clone().requires_grad_() for p in w]
        for _ in range(3):
            steps = torch.autograd.grad(cross_entropy(x.flatten(1) @ θ[0].T + θ[1], y), θ)
            θ = [
                (p - γ * (step + λ * (p - own))).detach().requires_grad_()
                for p, step, own in zip(θ, steps, w, strict=True)
            ]
        for found, expected in zip(get_arrays(client.model).values(), θ, strict=True):
            np.testing.assert_allclose(found, expected.detach(), atol=1e-6)

    def test_seen_clients_use_their_model_and_new_ones_make_one(self, run: Run, tmp_path: Path) -> None:
        keys = {"method": "pfedme", "rounds": 5, "participation": 1.0, "unseen-fraction": 0.34, "finetune-epochs": 5}
        path = run("made", **keys)
        figures = read_metrics(path)[-1]
        for group in ("seen", "unseen"):
            assert figures[group]["accuracy"] > figures[group]["accuracy_global"]
        client = next(folder.name for folder in (path / "clients").iterdir())
        (file,) = (path / "clients" / client).glob("*.safetensors")
        made, _ = load_model(personalise(path, tmp_path / "model", client))
        for name, array in load_file(file).items():
            np.testing.assert_array_equal(made.state_dict()[name].numpy(), array)


class TestNeighbours:
    def _points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        return rng.normal(size=(20, 3)).astype(np.float32), rng.integers(1, 4, 20), rng.normal(size=(7, 3))

    def test_neighbours_vote_by_their_distance(self) -> None:
        kept, labels, asked = self._points()
        found = probabilities(index(kept, labels, 4, 0.5), asked.astype(np.float32), 5)
        for row, x in enumerate(asked):
            squares = ((kept - x) ** 2).sum(axis=1)
            votes = np.zeros(5)
            for i in np.argsort(squares)[:4]:
                votes[labels[i]] += np.exp(-squares[i] / (0.5 * 3))
            np.testing.assert_allclose(found[row], votes / votes.sum(), atol=1e-5)

    def test_a_narrow_kernel_leaves_the_nearest(self) -> None:
        # exp(−r²/σ) is 0 in every precision for all neighbours; their ratios are not.
        kept, labels, asked = self._points()
        found = probabilities(index(100 * kept, labels, 4, 1e-3), (100 * asked).astype(np.float32), 5)
        for row, x in enumerate(asked):
            nearest = labels[((kept - x) ** 2).sum(axis=1).argmin()]
            assert found[row, nearest] == pytest.approx(1)

    def test_an_example_is_judged_by_the_others(self) -> None:
        kept, labels, _ = self._points()
        found = probabilities(index(kept, labels, 4, 0.5), None, 5)
        for i in range(20):
            others = np.arange(20) != i
            alone = probabilities(index(kept[others], labels[others], 4, 0.5), kept[i : i + 1], 5)
            np.testing.assert_allclose(found[i], alone[0], atol=1e-6)

    @pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
    def test_the_mixture_is_that_of_its_parts(self, weight: float) -> None:
        network = build("mlp", (1, 8, 8), 10, 1)
        x = torch.randn(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        y = torch.arange(30) % 3
        with torch.no_grad():
            z = network[:-1](x)
            mixed = Neighbours(network, z[:20], y[:20], 3, weight, 2.0)(x[20:]).exp()
            near = probabilities(index(z[:20].numpy(), y[:20].numpy(), 3, 2.0), z[20:].numpy(), 10)
            own = network(x[20:]).softmax(dim=1)
        torch.testing.assert_close(mixed, weight * torch.from_numpy(near).float() + (1 - weight) * own)


class TestKNNPer:
    def test_training_is_fedavg(self, run: Run) -> None:
        _same(run("avg"), run("knn", method="knn-per"))

    def test_every_client_gains_and_its_model_can_be_written(self, run: Run, tmp_path: Path) -> None:
        path = run("knn", method="knn-per", rounds=5, **{"unseen-fraction": 0.34})
        figures = read_metrics(path)[-1]
        for group in ("seen", "unseen"):
            assert figures[group]["accuracy"] > figures[group]["accuracy_global"]
        model, card = load_model(personalise(path, tmp_path / "model", "1"))
        assert card.neighbours
        test = simulated(*federate(settings(**{"num-clients": 6, "unseen-fraction": 0.34})), 1).test
        header, *rows = (line.split(",") for line in (path / "clients.csv").read_text().splitlines())
        (row,) = (dict(zip(header, row, strict=True)) for row in rows if row[0] == "1")
        accuracy = float((model(test.x).argmax(dim=1) == test.y).float().mean())
        assert accuracy == pytest.approx(float(row["accuracy"]), abs=1e-6)

    def test_a_client_chooses_what_predicts_most_of_its_examples_from_the_others(self, tmp_path: Path) -> None:
        """Against a search by brute force, on twenty clients whose labels are more or less those of the network."""
        network = build("linear", (1, 8, 8), 3, 1)
        chosen = set()
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(12, 1, 8, 8, generator=generator) + 3 * torch.randn(1, 1, 8, 8, generator=generator)
            with torch.no_grad():
                own = network(x).softmax(dim=1).numpy()
            y = torch.from_numpy(own.argmax(axis=1))
            noisy = torch.rand(12, generator=generator) < 0.08 * (seed % 10)
            y = torch.where(noisy, torch.randint(3, (12,), generator=generator), y)
            keys = {"method": "knn-per", "model": "linear", "knn-per.neighbors": "1,4", "knn-per.weights": 4}
            client = make_client(Examples(x, y), network, folder=tmp_path, **keys, **{"knn-per.scale": 1.0})
            assert client.personalise()
            flat, right = x.flatten(1).double().numpy(), {}
            for k in (1, 4):
                for weight in (0.0, 0.25, 0.5, 0.75, 1.0):
                    hits = 0
                    for i in range(12):
                        squares = ((flat - flat[i]) ** 2).sum(axis=1)
                        near = [j for j in np.argsort(squares) if j != i][:k]
                        votes = np.zeros(3)
                        for j in near:
                            votes[y[j]] += np.exp((squares[near[0]] - squares[j]) / 64)
                        mixed = weight * votes / votes.sum() + (1 - weight) * own[i]
                        hits += int(mixed.argmax() == y[i])
                    right[k, weight] = hits
            best = max(right, key=lambda pair: (right[pair], pair[1], -pair[0]))
            assert tuple(client.predictor.mixture.tolist()) == (*best, 1.0)
            chosen.add(best)
        assert len(chosen) > 2

    def test_a_client_chooses_what_predicts_most_of_its_held_out_examples(self, tmp_path: Path) -> None:
        """Against a search by brute force; the network is right on every training example, so these say nothing."""
        network = build("linear", (1, 8, 8), 3, 1)
        chosen = set()
        for seed in range(12):
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(40, 1, 8, 8, generator=generator)
            with torch.no_grad():
                own = network(x).softmax(dim=1).numpy()
            y = torch.from_numpy(own.argmax(axis=1))
            nearest = y[torch.cdist(x[20:].flatten(1), x[:20].flatten(1)).argmin(dim=1)]
            y[20:] = torch.where(torch.rand(20, generator=generator) < seed / 12, nearest, y[20:])
            keys = {"method": "knn-per", "model": "linear", "knn-per.neighbors": "1,6", "knn-per.weights": 4}
            keys |= {"knn-per.scale": 1.0, "knn-per.choose-on": "held-out", "validation-fraction": 0.5}
            client = make_client(Examples(x[:20], y[:20]), network, folder=tmp_path, **keys)
            client.data.validation = Examples(x[20:], y[20:])
            assert client.personalise()
            squares = ((x[20:, None] - x[None, :20]) ** 2).flatten(2).sum(dim=2).numpy()
            right = {}
            for k in (1, 6):
                near = np.zeros((20, 3))
                for i, row in enumerate(squares):
                    for j in np.argsort(row)[:k]:
                        near[i, y[j]] += np.exp((row.min() - row[j]) / 64)
                near /= near.sum(axis=1, keepdims=True)
                for weight in (0.0, 0.25, 0.5, 0.75, 1.0):
                    mixed = weight * near + (1 - weight) * own[20:]
                    right[k, weight] = int((mixed.argmax(axis=1) == y[20:].numpy()).sum())
            best = max(right, key=lambda pair: (right[pair], pair[1], -pair[0]))
            assert tuple(client.predictor.mixture.tolist()) == (*best, 1.0)
            chosen.add(best)
        assert len(chosen) > 2

    def test_neighbours_count_where_the_model_has_memorised_the_examples(self, tmp_path: Path) -> None:
        """Every λ is right on all training examples: the largest is taken."""
        network = build("linear", (1, 8, 8), 3, 1)
        x = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            y = network(x).argmax(dim=1)
            x += 20 * network[-1][-1].weight[y].reshape(x.shape)  # classes lie apart, where the network has them
            assert torch.equal(network(x).argmax(dim=1), y)
        client = make_client(Examples(x, y), network, folder=tmp_path, method="knn-per", model="linear")
        assert client.personalise()
        assert client.predictor.mixture.tolist() == [5, 1.0, 100.0]

    def test_the_model_of_a_run_has_the_choice_on_what_was_held_out(self, run: Run, tmp_path: Path) -> None:
        path = run("some", method="knn-per", **{"knn-per.choose-on": "held-out", "validation-fraction": 0.3})
        for client in ("0", "3"):
            model, _ = load_model(personalise(path, tmp_path / client, client))
            data = simulated(*federate(settings(**{"num-clients": 6})), int(client))
            held = data.hold_back(0.3, torch_generator(settings().seed, "validation", client), TASK)
            hits = {}
            for k in (5, 10):
                for weight in np.linspace(0, 1, 11):
                    model.mixture[:2] = torch.tensor([k, weight])
                    model._index = None
                    hits[k, weight] = int((model(held.validation.x).argmax(dim=1) == held.validation.y).sum())
            best = max(hits, key=lambda pair: (hits[pair], pair[1], -pair[0]))
            again, _ = load_model(tmp_path / client)
            assert again.mixture[:2].tolist() == pytest.approx(best)
            assert len(again.features) == len(held.train)

    def test_held_out_examples_are_needed_before_a_run_and_by_every_client(self, run: Run, tmp_path: Path) -> None:
        keys = {"method": "knn-per", "knn-per.choose-on": "held-out"}
        with pytest.raises(ConfigurationError, match=r"knn-per\.choose-on: .*set validation-fraction"):
            run("none", **keys)
        with pytest.raises(ConfigurationError, match=r"knn-per\.choose-on: .*evaluate-on = 'validation'"):
            run("both", **keys, **{"validation-fraction": 0.3, "evaluate-on": "validation"})
        network = build("mlp", (1, 8, 8), 10, 1)
        examples = Examples(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long))
        client = make_client(examples, network, folder=tmp_path, **keys, **{"validation-fraction": 0.3})
        with pytest.raises(RunError, match="holds out no example to choose k and λ on; raise validation-fraction"):
            client.personalise()

    def test_a_network_of_one_block_has_its_inputs_as_features(self, run: Run) -> None:
        assert read_metrics(run("linear", method="knn-per", model="linear"))[-1]["seen"]["accuracy"] > 0.5

    def test_more_neighbours_than_examples_are_all_of_them(self, run: Run) -> None:
        path = run("few", method="knn-per", **{"knn-per.neighbors": "5,100000"})
        assert read_metrics(path)[-1]["seen"]["accuracy"] > 0

    @pytest.mark.parametrize("word", ["0,5", "five", "2.5", ""])
    def test_wrong_numbers_of_neighbours(self, word: str) -> None:
        with pytest.raises(ConfigurationError, match=r"knn-per\.neighbors"):
            settings(method="knn-per", **{"knn-per.neighbors": word})


class TestUnseen:
    def test_fedrep_trains_a_head_for_new_clients_only(self, run: Run) -> None:
        keys = {"method": "fedrep", "rounds": 5, "participation": 1.0, "unseen-fraction": 0.34}
        none, new = (
            read_metrics(run(f"new{epochs}", **keys, **{"fedrep.new-head-epochs": epochs}))[-1] for epochs in (0, 20)
        )
        assert new["seen"]["accuracy"] == none["seen"]["accuracy"]
        assert new["unseen"]["accuracy"] > none["unseen"]["accuracy"] + 0.2

    def test_local_training_does_not_know_the_difference(self, run: Run) -> None:
        path = run("alone", method="local", rounds=10, participation=1.0, **{"unseen-fraction": 0.34})
        figures = read_metrics(path)[-1]
        assert figures["unseen"]["accuracy"] > 0.5  # chance is 10 %
        assert len(list((path / "clients").iterdir())) == 6


@pytest.mark.parametrize("method", ["per-fedavg", "pfedme", "knn-per"])
def test_packing_and_resume(method: str, run: Run, tmp_path: Path) -> None:
    keys = {"method": method, "finetune-epochs": 1}
    _same(whole := run("one", nodes=1, rounds=4, **keys), run("three", nodes=3, rounds=4, **keys), 1e-5)
    run("parts", nodes=1, rounds=2, **keys)
    run("parts", nodes=1, rounds=4, resume="parts", **keys)
    _same(whole, tmp_path / "parts")
    assert read_metrics(whole)[-1]["seen"] == read_metrics(tmp_path / "parts")[-1]["seen"]
