"""Tests of clients.training: steps by hand and against torch's own loop, and evaluation against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torch import nn

from florilegium.clients.core.training import EVALUATION_BATCH, batches, evaluate, mean_gradient, train
from florilegium.models.networks import build
from florilegium.partitions.clientdata import Examples
from tests.support import TASK, make_client, settings

FEATURES, CLASSES = 4, 3


def _examples(count: int, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return Examples(torch.from_numpy(x), torch.from_numpy(rng.integers(CLASSES, size=count)))


def _linear(seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(FEATURES, CLASSES)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _numpy(model: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    return model.weight.detach().numpy().astype(np.float64), model.bias.detach().numpy().astype(np.float64)


def _loss_and_gradient(weight, bias, examples):
    """The mean cross-entropy of softmax(W·x + b), and its gradients (p − onehot)ᵀ·x / n and mean(p − onehot)."""
    x, y = examples.x.numpy().astype(np.float64), examples.y.numpy()
    logits = x @ weight.T + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    residual = (p - np.eye(CLASSES)[y]) / len(y)
    return -np.log(p[np.arange(len(y)), y]).mean(), residual.T @ x, residual.sum(axis=0)


def _assert_equal(model: nn.Linear, weight, bias):
    np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.bias.detach().numpy(), bias, rtol=1e-5, atol=1e-6)


def _count_steps(examples, chosen, **options) -> int:
    steps = []
    train(
        _linear(),
        examples,
        chosen,
        _generator(),
        gradient_hook=lambda model, rows: steps.append(1),
        **options,
        task=TASK,
    )
    return len(steps)


class TestSgd:
    def test_one_full_batch_step_is_the_hand_computed_one(self):
        model, examples = _linear(), _examples(12)
        weight, bias = _numpy(model)
        loss, in_weight, in_bias = _loss_and_gradient(weight, bias, examples)
        chosen = settings(local_epochs=1, batch_size=12, learning_rate=0.5)
        assert train(model, examples, chosen, _generator(), task=TASK).loss == pytest.approx(loss, rel=1e-5)
        _assert_equal(model, weight - 0.5 * in_weight, bias - 0.5 * in_bias)

    def test_momentum_and_weight_decay_are_the_hand_computed_ones(self):
        """v ← μ·v + g + λ·w and w ← w − η·v; three full-batch steps."""
        rate, momentum, decay = 0.3, 0.8, 0.05
        model, examples = _linear(), _examples(12)
        weight, bias = _numpy(model)
        v_weight = v_bias = 0.0
        losses = []
        for _ in range(3):
            loss, in_weight, in_bias = _loss_and_gradient(weight, bias, examples)
            v_weight = momentum * v_weight + in_weight + decay * weight
            v_bias = momentum * v_bias + in_bias + decay * bias
            weight, bias = weight - rate * v_weight, bias - rate * v_bias
            losses.append(loss)
        chosen = settings(local_epochs=3, batch_size=20, learning_rate=rate, momentum=momentum, weight_decay=decay)
        assert train(model, examples, chosen, _generator(), task=TASK).loss == pytest.approx(np.mean(losses), rel=1e-5)
        _assert_equal(model, weight, bias)

    def test_batches_of_uneven_size_are_torchs_steps_in_the_same_order(self):
        model, reference, examples = _linear(), _linear(), _examples(10)
        chosen = settings(local_epochs=3, batch_size=4, learning_rate=0.2, momentum=0.9, weight_decay=0.01)
        mean = train(model, examples, chosen, _generator(5), task=TASK).loss
        optimizer = torch.optim.SGD(
            reference.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01, foreach=False, fused=False
        )
        total, order = 0.0, _generator(5)
        for _ in range(3):
            for rows in torch.randperm(10, generator=order).split(4):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(reference(examples.x[rows]), examples.y[rows])
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)
        _assert_equal(model, *_numpy(reference))
        assert mean == pytest.approx(total / 30, rel=1e-5)  # the mean over examples, not over batches

    def test_every_training_starts_without_momentum(self):
        chosen = settings(local_epochs=1, batch_size=12, learning_rate=0.3, momentum=0.9)
        model, examples = _linear(), _examples(12)
        train(model, examples, chosen, _generator(), task=TASK)
        weight, bias = _numpy(model)
        _, in_weight, in_bias = _loss_and_gradient(weight, bias, examples)
        train(model, examples, chosen, _generator(), task=TASK)
        _assert_equal(model, weight - 0.3 * in_weight, bias - 0.3 * in_bias)

    def test_parameters_without_gradient_stay_and_the_others_move(self):
        model = nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))
        model[0].requires_grad_(False)
        before = [parameter.clone() for parameter in model.parameters()]
        chosen = settings(local_epochs=2, batch_size=3, momentum=0.9, weight_decay=0.1, max_grad_norm=1.0)
        train(model, _examples(10), chosen, _generator(), task=TASK)
        moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert moved == [False, False, True, True]


class TestAdam:
    def test_two_full_batch_steps_are_the_hand_computed_ones(self):
        """Kingma and Ba 2015, Algorithm 1, with β₁ = 0.9, β₂ = 0.999, ε = 10⁻⁸ and L2 decay in the gradient."""
        rate, decay = 0.1, 0.02
        model, examples = _linear(), _examples(12)
        chosen = settings(optimizer="adam", local_epochs=2, batch_size=12, learning_rate=rate, weight_decay=decay)
        values = list(_numpy(model))
        first, second = [0.0, 0.0], [0.0, 0.0]
        for t in (1, 2):
            _, *gradients = _loss_and_gradient(*values, examples)
            for i in range(2):
                g = gradients[i] + decay * values[i]
                first[i] = 0.9 * first[i] + 0.1 * g
                second[i] = 0.999 * second[i] + 0.001 * g**2
                m, v = first[i] / (1 - 0.9**t), second[i] / (1 - 0.999**t)
                values[i] = values[i] - rate * m / (np.sqrt(v) + 1e-8)
        train(model, examples, chosen, _generator(), task=TASK)
        _assert_equal(model, *values)

    def test_differs_from_sgd_under_the_same_settings(self):
        models = _linear(), _linear()
        for model, word in zip(models, ("sgd", "adam"), strict=True):
            train(model, _examples(12), settings(optimizer=word, local_epochs=1), _generator(), task=TASK)
        assert not torch.equal(models[0].weight, models[1].weight)


class TestLength:
    """Ten examples in batches of four: three steps an epoch."""

    @pytest.mark.parametrize(
        ("chosen", "options", "steps"),
        [
            ({"local_epochs": 2}, {}, 6),
            ({"local_epochs": 2, "local_steps": 1}, {}, 1),
            ({"local_epochs": 2, "local_steps": 3}, {}, 3),
            ({"local_epochs": 1, "local_steps": 7}, {}, 7),  # more than an epoch
            ({"local_epochs": 2, "local_steps": 5}, {"epochs": 1}, 3),  # an explicit number of epochs wins
            ({"local_epochs": 2}, {"epochs": 4}, 12),
            ({"local_epochs": 2, "local_steps": 5}, {"epochs": 0}, 0),
        ],
    )
    def test_steps(self, chosen, options, steps):
        assert _count_steps(_examples(10), settings(batch_size=4, **chosen), **options) == steps

    def test_a_batch_larger_than_the_data_is_one_step_an_epoch(self):
        assert _count_steps(_examples(3), settings(batch_size=64, local_epochs=5)) == 5

    def test_zero_epochs_change_nothing_and_cost_nothing(self):
        model = _linear()
        before = _numpy(model)
        assert train(model, _examples(10), settings(), _generator(), epochs=0, task=TASK) == (0.0, None)
        _assert_equal(model, *before)

    def test_steps_and_epochs_of_the_same_length_are_the_same_training(self):
        one, other = _linear(), _linear()
        loss = train(one, _examples(10), settings(batch_size=4, local_epochs=2), _generator(3), task=TASK)
        assert train(other, _examples(10), settings(batch_size=4, local_steps=6), _generator(3), task=TASK) == loss
        assert torch.equal(one.weight, other.weight)

    def test_the_mean_loss_counts_the_examples_that_were_seen(self):
        """With a learning rate of almost 0 the loss stays, so the mean over 1½ epochs is that of the rows seen."""
        examples, chosen = _examples(10), settings(batch_size=5, local_steps=3, learning_rate=1e-12)
        model, order = _linear(), _generator(4)
        seen = torch.cat([torch.randperm(10, generator=order), torch.randperm(10, generator=order)[:5]])
        expected = nn.functional.cross_entropy(model(examples.x[seen]), examples.y[seen]).item()
        assert train(model, examples, chosen, _generator(4), task=TASK).loss == pytest.approx(expected, rel=1e-5)


class TestBatches:
    def test_an_epoch_has_every_example_once_in_full_batches_but_the_last(self):
        examples = _examples(10)
        parts = list(batches(examples, 4, _generator()))
        assert [len(rows) for rows in parts] == [4, 4, 2]
        rows = torch.cat(parts).tolist()
        assert sorted(rows) == list(range(10))
        assert rows != list(range(10))

    def test_epochs_have_different_orders(self):
        generator, examples = _generator(), _examples(10)
        first, second = (torch.cat(list(batches(examples, 4, generator))) for _ in range(2))
        assert not torch.equal(first, second)


class TestClipping:
    def _moved(self, **chosen) -> float:
        """Length of one full-batch step over all parameters together, learning rate 0.5."""
        model = _linear()
        before = np.concatenate([array.ravel() for array in _numpy(model)])
        train(
            model,
            _examples(12),
            settings(local_epochs=1, batch_size=12, learning_rate=0.5, **chosen),
            _generator(),
            task=TASK,
        )
        return float(np.linalg.norm(np.concatenate([array.ravel() for array in _numpy(model)]) - before))

    def test_a_long_gradient_is_cut_to_the_norm(self):
        _, in_weight, in_bias = _loss_and_gradient(*_numpy(_linear()), _examples(12))
        norm = math.hypot(np.linalg.norm(in_weight), np.linalg.norm(in_bias))
        assert norm > 0.01
        assert self._moved(max_grad_norm=0.01) == pytest.approx(0.5 * 0.01, rel=1e-3)
        assert self._moved(max_grad_norm=0.0) == pytest.approx(0.5 * norm, rel=1e-4)  # 0 switches it off
        assert self._moved(max_grad_norm=2 * norm) == pytest.approx(0.5 * norm, rel=1e-4)  # short enough

    def test_clipping_comes_after_the_hook(self):
        model = _linear()
        before = model.weight.detach().clone(), model.bias.detach().clone()

        def hundredfold(network, rows):
            for parameter in network.parameters():
                parameter.grad.mul_(100)

        chosen = settings(local_epochs=1, batch_size=12, learning_rate=0.5, max_grad_norm=0.01)
        train(model, _examples(12), chosen, _generator(), gradient_hook=hundredfold, task=TASK)
        moved = math.hypot((model.weight - before[0]).norm().item(), (model.bias - before[1]).norm().item())
        assert moved == pytest.approx(0.5 * 0.01, rel=1e-3)


class TestHook:
    def test_changes_the_gradient_of_every_step(self):
        """With the gradient replaced by 1, three steps of 0.1 lower every parameter by 0.3."""
        model, examples = _linear(), _examples(12)
        weight, bias = _numpy(model)

        def ones(network, rows):
            assert network is model
            for parameter in network.parameters():
                parameter.grad.fill_(1)

        train(model, examples, settings(local_steps=3, learning_rate=0.1), _generator(), gradient_hook=ones, task=TASK)
        _assert_equal(model, weight - 0.3, bias - 0.3)

    def test_sees_the_gradient_of_its_batch_alone(self):
        model, examples = _linear(), _examples(8)
        seen = []
        chosen = settings(local_epochs=1, batch_size=4, learning_rate=1e-12)
        train(
            model,
            examples,
            chosen,
            _generator(2),
            gradient_hook=lambda m, rows: seen.append(m.weight.grad.numpy().copy()),
            task=TASK,
        )
        assert len(seen) == 2
        for rows, gradient in zip(torch.randperm(8, generator=_generator(2)).split(4), seen, strict=True):
            part = Examples(examples.x[rows], examples.y[rows])
            np.testing.assert_allclose(gradient, _loss_and_gradient(*_numpy(model), part)[1], rtol=1e-4, atol=1e-6)


class TestDenormals:
    def test_they_are_zero_in_training_and_nowhere_else(self):
        products = []

        def hook(model: nn.Module, rows: torch.Tensor) -> None:
            products.append(float(torch.tensor(1e-30) * torch.tensor(1e-10)))
            raise RuntimeError("in the middle of training")

        with pytest.raises(RuntimeError, match="in the middle"):
            train(_linear(), _examples(8), settings(), _generator(), gradient_hook=hook, task=TASK)
        assert products == [0.0]
        assert float(torch.tensor(1e-30) * torch.tensor(1e-10)) > 0.0


class TestDeterminism:
    def test_the_generator_alone_decides(self):
        chosen = settings(local_epochs=2, batch_size=3)
        weights = []
        for seed, noise in ((1, 5), (1, 6), (2, 5)):
            torch.manual_seed(noise)
            model = _linear()
            train(model, _examples(10), chosen, _generator(seed), task=TASK)
            weights.append(model.weight.detach())
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])

    def test_the_global_generator_is_untouched(self):
        before = torch.get_rng_state()
        train(_linear(), _examples(10), settings(), _generator(), task=TASK)
        assert torch.equal(torch.get_rng_state(), before)


class TestEvaluate:
    @pytest.mark.parametrize("count", [1, EVALUATION_BATCH, 2 * EVALUATION_BATCH + 77])
    def test_loss_and_accuracy_are_scikit_learns(self, count):
        model, examples = _linear(), _examples(count)
        with torch.no_grad():
            p = torch.softmax(model(examples.x).double(), dim=1).numpy()
        loss, accuracy = evaluate(model, examples, task=TASK).values()
        assert loss == pytest.approx(log_loss(examples.y.numpy(), p, labels=range(CLASSES)), rel=1e-5)
        assert accuracy == pytest.approx(accuracy_score(examples.y.numpy(), p.argmax(axis=1)))

    def test_without_examples_both_are_nan(self):
        loss, accuracy = evaluate(_linear(), _examples(0), task=TASK).values()
        assert math.isnan(loss)
        assert math.isnan(accuracy)

    def test_dropout_is_off_and_batch_norm_keeps_its_statistics(self):
        model = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Dropout(0.9), _linear())
        model.train()
        # Fresh batch norm in evaluation divides by √(1 + ε): the linear layer sees x almost unchanged.
        loss, _ = evaluate(model, _examples(50), task=TASK).values()
        expected, _, _ = _loss_and_gradient(*_numpy(model[2]), _examples(50))
        assert loss == pytest.approx(expected, rel=1e-4)
        assert not model[0].running_mean.any()

    def test_a_part_that_was_trained_alone_is_evaluated_too(self):
        model, examples = nn.Sequential(nn.Linear(FEATURES, 50), nn.Dropout(0.5), nn.Linear(50, CLASSES)), _examples(40)
        first = evaluate(model, examples, task=TASK)
        model[1].train()  # as after a training of this part, while the whole is in evaluation mode
        assert evaluate(model, examples, task=TASK) == first

    def test_training_after_an_evaluation_is_training_again(self):
        model = nn.Sequential(nn.BatchNorm1d(FEATURES), _linear())
        evaluate(model, _examples(50), task=TASK)
        train(model, _examples(50), settings(local_epochs=1), _generator(), task=TASK)
        assert model[0].running_mean.any()

    def test_nothing_is_changed(self):
        model = _linear()
        before = _numpy(model)
        evaluate(model, _examples(20), task=TASK)
        _assert_equal(model, *before)
        assert model.weight.grad is None


class TestDecay:
    def test_is_a_smaller_learning_rate(self):
        examples, whole, decayed = _examples(12), _linear(), _linear()
        train(whole, examples, settings(**{"learning-rate": 0.05, "batch-size": 4}), _generator(), task=TASK)
        train(
            decayed, examples, settings(**{"learning-rate": 0.2, "batch-size": 4}), _generator(), decay=0.25, task=TASK
        )
        _assert_equal(decayed, *_numpy(whole))

    @pytest.mark.parametrize(("number", "factor"), [(1, 1), (3, 1), (4, 0.5), (6, 0.5), (7, 0.25), (0, 1)])
    def test_steps_down_with_the_rounds(self, number, factor):
        keys = {"learning-rate-decay": 0.5, "decay-rounds": 3, "model": "mlp"}
        client = make_client(_examples(2), build("mlp", (1, 8, 8), 10, 1), **keys)
        client.round = number
        assert client.decay() == factor


def test_after_every_epoch():
    calls = []
    train(_linear(), _examples(6), settings(), _generator(), epochs=3, after_epoch=lambda: calls.append(1), task=TASK)
    assert len(calls) == 3


def test_mean_gradient_is_that_of_all_examples():
    examples, model = _examples(EVALUATION_BATCH + 7), _linear()
    _, by_weight, by_bias = _loss_and_gradient(*_numpy(model), examples)
    found = mean_gradient(model, examples, [model.weight, model.bias], task=TASK)
    for ours, expected in zip(found, (by_weight, by_bias), strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-4, atol=1e-7)


class TestLessMemory:
    """Batches in parts, and bfloat16, which three significant digits of a number survive: 2⁻⁸."""

    def test_gradients_of_parts_add_up_to_the_batch(self):
        """17 examples are batches of 12 = 5 + 5 + 2 and of 5, each part weighted by its share."""
        trained, sizes = {}, {}
        for part in (0, 5):
            model, examples = _linear(), _examples(17)
            chosen = settings(local_epochs=1, batch_size=12, learning_rate=0.5, micro_batch=part, max_grad_norm=0.1)
            seen = sizes[part] = []
            watch = model.register_forward_hook(lambda module, given, found, seen=seen: seen.append(len(found)))
            loss = train(model, examples, chosen, _generator(), task=TASK).loss
            watch.remove()
            trained[part] = (loss, *_numpy(model))
        assert sizes[5][-4:] == [5, 5, 2, 5]
        for whole, parts in zip(trained[0], trained[5], strict=True):
            np.testing.assert_allclose(parts, whole, rtol=1e-6, atol=1e-7)

    def test_bf16_rounds_products_and_nothing_else(self):
        """The loss is that of logits rounded to bfloat16, the parameters stay float32, and so does evaluation."""
        model, examples = _linear(), _examples(12)
        weight, bias = _numpy(model)
        exact, in_weight, _ = _loss_and_gradient(weight, bias, examples)
        chosen = settings(local_epochs=1, batch_size=12, learning_rate=0.5, precision="bf16")
        loss = train(model, examples, chosen, _generator(), task=TASK).loss
        logits = (
            examples.x.bfloat16() @ torch.from_numpy(weight).bfloat16().T + torch.from_numpy(bias).bfloat16()
        ).float()
        assert loss == pytest.approx(float(nn.functional.cross_entropy(logits, examples.y)), abs=2**-8)
        assert loss == pytest.approx(exact, abs=2**-6)
        assert loss != pytest.approx(exact, rel=1e-6)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        moved = _numpy(model)[0] - weight
        np.testing.assert_allclose(moved, -0.5 * in_weight, atol=2**-6 * np.abs(in_weight).max())
        found = evaluate(model, examples, TASK)["loss"]
        assert found == pytest.approx(_loss_and_gradient(*_numpy(model), examples)[0], rel=1e-6)
