"""IFCA, CFL, FL+HC and FLUX: their limits, choices and averages, splits, descriptors, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.cluster import AgglomerativeClustering
from sklearn.preprocessing import MinMaxScaler
from torch.nn.functional import cross_entropy

from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.reports import ALWAYS
from florilegium.clients.core.wire import Reply, of_network, unpack
from florilegium.clients.families.clustered import named, of_clusters
from florilegium.clients.flux import ABSENT, MOMENTS, projection
from florilegium.clients.hyper.clustered import FLHCHyper
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.cfl import bipartition
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.requests import Cohort
from florilegium.strategies.families.splits import cosines, gram
from florilegium.strategies.fl_hc import hierarchical
from florilegium.strategies.flux import dense, scaled
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import FIRST_NODE
from tests.runs import Runs
from tests.support import config, make_client, perform

KEYS: dict[str, Value] = {
    "model": "mlp", "num-clients": 4, "participation": 1.0, "rounds": 2, "local-epochs": 1, "evaluate-every": 0,
}  # fmt: skip
SHAPE = (1, 8, 8)


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _strategy(method: str, labeled: tuple[str, ...] = (), **keys: Value) -> Any:
    """Return a strategy without a run, which knows of these clients with labels alone."""
    options, hyper = parse(config(method=method, **keys))
    members = {client: SimpleNamespace(labeled=client in labeled) for client in (*labeled, "mute")}
    roster: Any = SimpleNamespace(clients=members, ids=lambda *groups, **only: list(labeled))
    entry = METHODS[method]
    return entry.strategy_class()(Setup(options, hyper, entry.client_class(), roster, None))  # type: ignore[arg-type]


def _examples(count: int, seed: int = 1, classes: int = 10) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *SHAPE, generator=generator)
    return Examples(x, torch.randint(classes, (count,), generator=generator))


def _models(count: int) -> list[Arrays]:
    return [get_arrays(build("mlp", SHAPE, 10, seed)) for seed in range(1, count + 1)]


def _loss(network: torch.nn.Module, arrays: Arrays, examples: Examples) -> float:
    set_arrays(network, arrays)
    with torch.no_grad():
        return float(cross_entropy(network(examples.x), examples.y))


# ------------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "ifca", "ifca.clusters": 1}, {"method": "ifca", "ifca.clusters": 1, "ifca.shared-body": True},
        {"method": "cfl", "cfl.epsilon-1": 0.0},
    ],
    ids=["ifca", "ifca, shared body", "cfl"],
)  # fmt: skip
def test_a_single_cluster_is_fedavg_bit_for_bit(run: Runs, keys: dict[str, Value]) -> None:
    common: dict[str, Value] = {"participation": 0.5, "server-learning-rate": 0.7}
    plain = read_checkpoint(run("plain", method="fedavg", **common)).arrays
    ours = read_checkpoint(run("ours", **common, **keys)).arrays
    whole = of_network(ours) | of_clusters(ours)[0]
    assert whole.keys() == plain.keys()
    assert all(np.array_equal(whole[name], array) for name, array in plain.items())


# -------------------------------------------------------------------------------------------------- IFCA


@pytest.mark.parametrize("shared", [False, True])
def test_a_client_trains_and_returns_the_model_with_the_least_loss(tmp_path: Path, shared: bool) -> None:
    examples, models, network = _examples(30), _models(3), build("mlp", SHAPE, 10, 1)
    head = [*models[0]][-2:]  # weight and bias of the last block
    last = head if shared else [*models[0]]
    models = [{**models[0], **{name: own[name] for name in last}} for own in models]
    losses = [_loss(network, arrays, examples) for arrays in models]
    order = np.roll(np.argsort(losses), 1)  # the best model is the second
    models, losses, best = [models[i] for i in order], [losses[i] for i in order], 1
    sent = {name: array for name, array in models[0].items() if name not in last}
    for number, arrays in enumerate(models):
        sent |= named(number, {name: arrays[name] for name in last})
    client = make_client(examples, network, folder=tmp_path, method="ifca", **{"local-steps": 2})
    answer = perform(client, "train", sent)
    assert answer.metrics["cluster"] == best
    others = {*named(0, dict.fromkeys(last)), *named(2, dict.fromkeys(last))}  # type: ignore[arg-type]
    assert {*answer.arrays} == {*sent} - others
    plain = make_client(examples, network, folder=tmp_path, method="fedavg", **{"local-steps": 2})
    alone = perform(plain, "train", {**models[0], **models[best]}).arrays
    for name, array in alone.items():
        key = f"beside.{best}.{name}" if name in last else name
        assert np.array_equal(answer.arrays[key], array)
    metrics = perform(client, "test", sent, popular=0).metrics
    assert (metrics["cluster"], metrics["loss"]) == (best, pytest.approx(losses[best], rel=1e-5))
    client.data.labeled = False
    metrics = perform(client, "test", sent, popular=0).metrics
    assert (metrics["cluster"], metrics["loss"]) == (0, pytest.approx(losses[0], rel=1e-5))


def test_a_model_without_a_finite_loss_is_not_chosen(tmp_path: Path) -> None:
    good, bad = _models(1)[0], {name: np.full_like(array, np.nan) for name, array in _models(1)[0].items()}
    client = make_client(_examples(5), build("mlp", SHAPE, 10, 1), folder=tmp_path, method="ifca")
    assert perform(client, "train", named(0, bad) | named(1, good)).metrics["cluster"] == 1
    with pytest.raises(RunError, match="no cluster's model has a finite loss on its 5"):
        perform(client, "train", named(0, bad) | named(1, bad))


@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_models_move_by_the_updates_of_the_clients_that_chose_them(run: Runs, averaging: str) -> None:
    """A node for each client, so that every reply has wᵢ·Δθᵢ of one client, and names one cluster's arrays only."""
    keys: dict[str, Value] = {"method": "ifca", "ifca.averaging": averaging, "rounds": 1}
    first = read_checkpoint(run("first", **{**keys, "rounds": 0})).arrays
    after = read_checkpoint(run("after", nodes=4, **keys)).arrays
    replies = [Reply.unpack(message.content) for message in run.grid.received if "metrics" in str(message.content)]
    replies = [reply for reply in replies if reply.arrays]
    chosen = np.array([reply.metrics["cluster"][0] for reply in replies])
    weights = np.array([reply.metrics["weight"][0] for reply in replies])
    assert {*chosen} == {0, 1}
    choices = read_checkpoint(run.folder / "after").facts["own"]["choices"]
    assert choices == [(chosen == 0).sum(), (chosen == 1).sum()]
    for cluster in (0, 1):
        divisor = weights[chosen == cluster].sum() if averaging == "models" else weights.sum()
        for name in named(cluster, of_clusters(first)[cluster]):
            mean = sum(reply.arrays[name] for reply in replies if name in reply.arrays) / divisor
            np.testing.assert_allclose(after[name], first[name] + mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("told", "returned"),
    [
        ([0.0], {1: "wb"}), ([2.0], {1: "wb"}), ([0.5], {1: "wb"}), ([], {1: "wb"}), ([1.0], {}), ([1.0], {1: "w"}),
        ([1.0], {0: "wb", 1: "wb"}),
    ],
)  # fmt: skip
def test_a_client_returns_the_whole_model_that_it_names(told: list[float], returned: dict[int, str]) -> None:
    strategy = _strategy("ifca", **{"ifca.clusters": 3})
    ones = {name: np.ones(2) for name in "wb"}
    sent = {"body": np.ones(2)} | named(0, ones) | named(1, ones) | named(2, ones)
    lie = {"body": np.ones(2)}
    for cluster, names in returned.items():
        lie |= named(cluster, {name: ones[name] for name in names})
    strategy.check_reply("train", sent, Reply(["a"], sent | {}, {"cluster": [0.0, 1.0, 2.0]}, {}))
    strategy.check_reply("train", sent, Reply(["a"], {"body": np.ones(2)} | named(1, ones), {"cluster": [1.0]}, {}))
    strategy.check_reply("train", sent, Reply([], {}, {}, {"a": "failed"}))
    strategy.check_reply("test", sent, Reply(["a"], {}, {"cluster": [1.0]}, {}))
    with pytest.raises(ValueError, match="name the clusters"):
        strategy.check_reply("train", sent, Reply(["a"], lie, {"cluster": told}, {}))


def test_a_reply_that_contradicts_itself_is_not_used(run: Runs) -> None:
    """The first of four nodes returns another cluster's model than it names: the model is that of the other three."""

    def answers(told: float) -> Callable[[Message], Message | None]:
        def answer(message: Message) -> Message | None:
            if message.metadata.dst_node_id != FIRST_NODE or message.metadata.message_type != "train":
                return None
            clients = [str(client) for client in message.content["config"]["clients"]]  # type: ignore[call-overload]
            numbers = {**{name: [1.0] for name in ALWAYS}, "loss": [0.5], "cluster": [told]}
            zeros = {name: np.zeros_like(array) for name, array in unpack(message.content["arrays"]).items()}  # type: ignore[arg-type]
            return Message(Reply(clients, named(1, of_clusters(zeros)[1]), numbers, {}).pack(), reply_to=message)

        return answer

    keys: dict[str, Value] = {"method": "ifca", "rounds": 1, "min-success": 0.5}
    lied = run("lied", nodes=4, intercept=answers(0.0), **keys)
    (line,) = (lied / "failures.jsonl").read_text().splitlines()
    assert "name the clusters" in json.loads(line)["reason"]
    assert sum(read_checkpoint(lied).facts["own"]["choices"]) == 3
    honest = run("honest", nodes=4, intercept=answers(1.0), **keys)
    assert sum(read_checkpoint(honest).facts["own"]["choices"]) == 4


def test_clients_without_labels_get_the_model_that_most_chose() -> None:
    strategy, asked = _strategy("ifca", **{"ifca.clusters": 3}), {}
    strategy.restore({}, {"choices": [1, 4, 2]})
    strategy.measure(SimpleNamespace(ask=lambda *args, **options: asked.update(options)), [], {})
    assert asked["popular"] == 1


def test_every_client_downloads_all_models_and_uploads_one(run: Runs) -> None:
    run("run", method="ifca", rounds=1, **{"ifca.clusters": 3})
    replies = [Reply.unpack(message.content) for message in run.grid.received if "metrics" in str(message.content)]
    for reply in replies:
        if reply.arrays:
            down, up = (np.array(reply.metrics[f"bytes-{way}"]) for way in ("down", "up"))
            assert (down == 3 * up).all()


def test_the_first_models_of_all_clusters_differ(run: Runs) -> None:
    model = read_checkpoint(run("run", method="ifca", rounds=0, **{"ifca.clusters": 4})).arrays
    weights = [own["fc1.1.weight"] for own in of_clusters(model).values()]
    assert len(weights) == 4
    assert not any(np.array_equal(one, other) for one, other in combinations(weights, 2))


def test_models_share_the_body_of_an_earlier_run(run: Runs) -> None:
    run("earlier", method="fedavg", rounds=1)
    keys: dict[str, Value] = {"method": "ifca", "init": "earlier", "rounds": 0}
    with pytest.raises(ConfigurationError, match=r"init: .* set ifca\.shared-body = true"):
        run("refused", **keys)
    earlier = read_checkpoint(run.folder / "earlier").arrays
    model = read_checkpoint(run("later", **keys, **{"ifca.shared-body": True})).arrays
    shared = [name for name in model if name in earlier]
    assert len(shared) == len(earlier) - 2
    assert all(np.array_equal(model[name], earlier[name]) for name in shared)
    one, other = of_clusters(model).values()
    assert all(not np.array_equal(one[name], other[name]) for name in one if one[name].any())


def test_stock_strategies_send_one_model_and_no_clusters(tmp_path: Path) -> None:
    network = build("mlp", SHAPE, 10, 1)
    client = make_client(_examples(5), network, folder=tmp_path, method="ifca")
    with pytest.raises(RunError, match="own strategy"):
        client.fit([*get_arrays(network).values()], {})


@pytest.mark.parametrize("keys", [{"server-optimizer": "fedadam"}, {"server-momentum": 0.9}])
@pytest.mark.parametrize("method", ["ifca", "cfl"])
def test_clusters_are_plain_means(method: str, keys: dict[str, Value]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(keys))}.*method '{method}' averages"):
        _strategy(method, **keys)
    assert why_not(METHODS[method], "robust aggregation")


# ------------------------------------------------------------------------------------------ CFL and FL+HC


def _updates(count: int, seed: int = 1) -> tuple[Arrays, np.ndarray]:
    """Return stacked updates of two arrays, and the same as rows of a matrix."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {"a": rng.normal(size=(count, 3, 2)).astype(np.float32), "b": rng.normal(size=(count, 4))}
    return arrays, np.hstack([array.reshape(count, -1) for array in arrays.values()])


def test_bipartition_is_the_best_of_all() -> None:
    for seed in range(5):
        arrays, rows = _updates(7, seed)
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(similar := cosines(gram(arrays)), units @ units.T, atol=1e-6)
        halves, α = bipartition(similar)
        across = []
        for size in range(1, 7):
            for half in combinations(range(7), size):
                other = [i for i in range(7) if i not in half]
                across.append(similar[np.ix_(half, other)].max())
        assert α == pytest.approx(min(across))
        assert α == similar[halves == 0][:, halves == 1].max()


def test_a_split_keeps_what_new_clients_are_compared_with() -> None:
    clients = ("p", "q", "r", "s", "new")
    strategy = _strategy("cfl", clients, **{"server-learning-rate": 0.5})
    arrays, rows = _updates(4)
    θ: Arrays = {name: np.ones(array.shape[1:], np.float32) for name, array in arrays.items()}
    weights, halves = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 1, 1, 0])
    outcome = Outcome(list(clients[:4]), arrays, {"weight": weights})
    model = strategy.split(0, θ, outcome, halves, named(0, θ))
    assert {*of_clusters(model)} == {1, 2}
    for half in (0, 1):
        mean = (weights[halves == half, None] * rows[halves == half]).sum(axis=0) / weights[halves == half].sum()
        found = np.concatenate([array.ravel() for array in of_clusters(model)[half + 1].values()])
        np.testing.assert_allclose(found, 1 + 0.5 * mean, rtol=1e-5)
    assert strategy.places == {"p": 1, "q": 2, "r": 2, "s": 1}

    strategy.restore(*strategy.state())  # a new client trains θ, and goes where its mean cosine similarity is largest
    asked = []
    for seed in range(6):
        update, row = _updates(1, seed + 10)

        def updates(round: Any, lost: Any, sent: Arrays, *, evaluation: bool, own: Arrays = update) -> Outcome:
            asked.append((tuple(lost), evaluation, all(np.array_equal(sent[n], θ[n]) for n in θ)))
            return Outcome([*lost], own, {}, {})

        strategy.updates = updates
        places, failures = strategy.locate(None, ["q", "new", "mute"], model, evaluation=True)
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        means = [float((units[halves == half] @ row[0]).mean()) for half in (0, 1)]
        assert places == {"q": 2, "new": 1 + int(np.argmax(means)), "mute": 1}
        assert not failures
    assert asked == [(("new",), True, True)] * 6
    assert "new" not in strategy.places
    strategy.locate(None, ["new"], model, evaluation=False)
    assert strategy.places["new"] in (1, 2)


def test_a_client_that_fails_on_its_way_is_named() -> None:
    strategy = _strategy("fl-hc", ("p", "q", "new"))
    arrays, _ = _updates(2)
    θ: Arrays = {name: array[0] for name, array in arrays.items()}
    weights = np.array([1.0, 0.0])  # a device may claim none
    model = strategy.split(0, θ, Outcome(["p", "q"], arrays, {"weight": weights}), np.array([0, 1]), named(0, θ))
    assert all(np.isfinite(array).all() for array in model.values())
    strategy.updates = lambda *args, **kwargs: Outcome([], {}, {}, {"new": "broken"})
    assert strategy.locate(None, ["p", "new"], model, evaluation=False) == ({"p": 1}, {"new": "broken"})
    assert "new" not in strategy.places


def test_slow_devices_are_not_waited_for_in_any_cluster() -> None:
    """Of eight devices that were asked six are needed: three of four in each cluster."""
    clients = [f"{c}{i}" for c in "ab" for i in range(4)]
    strategy = _strategy("cfl", tuple(clients))
    strategy.places = {client: int(client[0] == "b") for client in clients}
    θ: Arrays = {"a": np.zeros(2, np.float32)}
    asked = {}

    def ask_groups(phase: str, groups: Sequence[Any], **_: Any) -> list[Outcome]:
        asked.update({group.cohort[0][0]: group.cohort.wanted for group in groups})
        return [Outcome([], {}, {}, {}) for _ in groups]

    round: Any = SimpleNamespace(
        number=1, ask_groups=ask_groups, sample=lambda: Cohort(clients, 6),
        require=lambda whole, asked: Outcome(["a0"], {}, {"loss": np.ones(1), "weight": np.ones(1)}),
    )  # fmt: skip
    strategy.train_round(round, named(0, θ) | named(1, θ))
    assert asked == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    ("keys", "splits"),
    [
        ({}, True),
        ({"cfl.epsilon-1": 0.99}, False),  # the first mean update is the largest so far
        ({"cfl.epsilon-2": 50.0}, False),
        ({"cfl.gamma": 0.999}, False),
        ({"cfl.min-clients": 5}, False),
        ({"cfl.min-clients": 4}, True),
        ({"cfl.relative": False, "cfl.epsilon-1": 1.2}, False),  # the mean update has norm 1.45
        ({"cfl.relative": False, "cfl.epsilon-1": 50.0, "cfl.epsilon-2": 1e-9}, True),
    ],
)
def test_every_criterion_of_cfl(keys: dict[str, Value], splits: bool) -> None:
    strategy = _strategy("cfl", ("p", "q", "r", "s"), **{"cfl.epsilon-1": 1.5, "cfl.epsilon-2": 0.1, **keys})
    arrays, _ = _updates(4)
    θ: Arrays = {name: np.zeros(array.shape[1:], np.float32) for name, array in arrays.items()}
    clients, weight = ["p", "q", "r", "s"], np.ones(4)
    strategy.updates = lambda *args: Outcome(clients, arrays, {"weight": weight})
    sums = {name: array.sum(axis=0) for name, array in arrays.items()}
    told = np.array([3.0, np.nan, 3.0, 3.0])  # a device may keep its own to itself
    outcome = Outcome(clients, sums, {"weight": weight, "update-norm": told})
    round: Any = SimpleNamespace(number=1)
    model = strategy.review(round, named(0, θ), named(0, θ), {0: outcome})
    assert ({*of_clusters(model)} == {1, 2}) == splits


@pytest.mark.parametrize(("share", "splits"), [(0.99, True), (1.01, False)])
def test_gamma_is_compared_with_the_root_of_the_papers_formula(share: float, splits: bool) -> None:
    """Two pairs of clients, each of one direction, at an angle φ: α = cos φ, and √((1 − α)/2) = sin(φ/2)."""
    φ, clients = 1.0, ("p", "q", "r", "s")
    strategy = _strategy(
        "cfl", clients, **{"cfl.epsilon-1": 1.5, "cfl.epsilon-2": 0.1, "cfl.gamma": share * np.sin(φ / 2)}
    )
    arrays: Arrays = {"a": np.array([[1, 0], [1, 0], *[[np.cos(φ), np.sin(φ)]] * 2])}
    strategy.updates = lambda *args: Outcome([*clients], arrays, {"weight": np.ones(4)})
    outcome = Outcome([*clients], {"a": arrays["a"].sum(axis=0)}, {"weight": np.ones(4), "update-norm": np.ones(4)})
    θ: Arrays = {"a": np.zeros(2)}
    model = strategy.review(SimpleNamespace(number=1), named(0, θ), named(0, θ), {0: outcome})
    assert ({*of_clusters(model)} == {1, 2}) == splits


def test_a_cluster_has_come_to_rest_compared_with_the_largest_mean_update_so_far() -> None:
    clients, weight = ["p", "q", "r", "s"], np.array([1.0, 2.0, 3.0, 4.0])
    keys: dict[str, Value] = {"cfl.epsilon-1": 0.5, "cfl.epsilon-2": 2.0}
    strategy = _strategy("cfl", tuple(clients), **keys)
    arrays, rows = _updates(4)
    θ: Arrays = {name: np.zeros(array.shape[1:], np.float32) for name, array in arrays.items()}
    sums = {name: np.tensordot(weight, array, axes=1) for name, array in arrays.items()}
    peak = np.linalg.norm(weight @ rows) / 10
    for scale, largest, clusters in ((1.0, 3.0, {0}), (0.6, 3.0, {0}), (0.4, 1.9, {0}), (0.4, 2.1, {1, 2})):
        moved = {name: scale * array for name, array in sums.items()}
        norms = np.array([0.1, 0.1, largest * peak, 0.1])
        outcome = Outcome(clients, moved, {"weight": weight, "update-norm": norms})
        state, strategy = strategy.state(), _strategy("cfl", tuple(clients), **keys)  # as in a resumed run
        strategy.restore(*state)
        strategy.updates = lambda *args: Outcome(clients, arrays, {"weight": weight})
        model = strategy.review(SimpleNamespace(number=1), named(0, θ), named(0, θ), {0: outcome})
        assert {*of_clusters(model)} == clusters


@pytest.mark.parametrize(("replies", "splits"), [(0, False), (1, False), (2, True)])
def test_a_cluster_of_cfl_is_split_by_those_of_its_clients_that_reply(replies: int, splits: bool) -> None:
    """A client that did not reply goes down the tree later, as a new one does."""
    clients = ["p", "q", "r", "s"]
    strategy = _strategy("cfl", tuple(clients), **{"cfl.epsilon-1": 1.5, "cfl.epsilon-2": 0.1})
    arrays, _ = _updates(4)
    θ: Arrays = {name: np.zeros(array.shape[1:], np.float32) for name, array in arrays.items()}
    some = {name: array[:replies] for name, array in arrays.items()} if replies else {}
    strategy.updates = lambda *args: Outcome(clients[:replies], some, {"weight": np.ones(replies)})
    sums = {name: array.sum(axis=0) for name, array in arrays.items()}
    outcome = Outcome(clients, sums, {"weight": np.ones(4), "update-norm": np.full(4, 3.0)})
    model = strategy.review(SimpleNamespace(number=1), named(0, θ), named(0, θ), {0: outcome})
    assert {*of_clusters(model)} == ({1, 2} if splits else {0})
    assert {*strategy.places} == ({"p", "q"} if splits else set())


@pytest.mark.parametrize("linkage", ["single", "complete", "average", "ward"])
def test_hierarchical_clustering_is_that_of_the_updates_themselves(linkage: Any) -> None:
    arrays, rows = _updates(9)
    for metric in ("euclidean", "cosine") if linkage != "ward" else ("euclidean",):
        fixed = FLHCHyper(linkage=linkage, metric=metric, relative=False, threshold=4.0 if metric == "euclidean" else 1)
        theirs = AgglomerativeClustering(None, metric=metric, linkage=linkage, distance_threshold=fixed.threshold)
        three = FLHCHyper(linkage=linkage, metric=metric, clusters=3)
        others = AgglomerativeClustering(3, metric=metric, linkage=linkage)
        for hyper, model in ((fixed, theirs), (three, others)):
            ours, labels = hierarchical(gram(arrays), hyper), model.fit_predict(rows)
            assert len({*ours}) == len({*zip(ours, labels, strict=True)}) == len({*labels})
    assert hierarchical(gram({"a": arrays["a"][:1]}), FLHCHyper()).tolist() == [0]


def test_clusters_are_found_after_the_warm_up_by_updates_of_the_global_model(run: Runs) -> None:
    plain = read_checkpoint(run("plain", method="fedavg", rounds=1)).arrays
    ours = read_checkpoint(run("ours", method="fl-hc", **{"fl-hc.warmup-rounds": 1, "fl-hc.clusters": 2}))
    assert {*of_clusters(ours.arrays)} == {*ours.facts["own"]["places"].values()} == {1, 2}
    assert all(np.array_equal(ours.state[f"model/0/{name}"], array) for name, array in plain.items())


def test_ward_needs_euclidean_distances() -> None:
    with pytest.raises(ConfigurationError, match=r"'ward' needs fl-hc\.metric = 'euclidean'"):
        parse(config(method="fl-hc", **{"fl-hc.metric": "cosine"}))


# -------------------------------------------------------------------------------------------------- FLUX


def test_descriptor(tmp_path: Path) -> None:
    examples, network = _examples(12, classes=4), build("mlp", SHAPE, 10, 1)
    y = examples.y.clone()
    y[y == 3], y[0] = 2, 3  # class 3 has one example
    client = make_client(Examples(examples.x, y), network, folder=tmp_path, method="flux", **{"flux.dimensions": 3})
    found = perform(client, "describe", get_arrays(network), labels=True).arrays[MOMENTS]
    with torch.no_grad():
        z = network[:-1](examples.x).numpy()
    p = projection(z.shape[1], 3, 1)
    np.testing.assert_allclose(p.T @ p, np.eye(3), atol=1e-12)
    z = z.astype(np.float64) @ p
    assert found.shape == (11, 2, 3)
    np.testing.assert_allclose(found[0], [z.mean(axis=0), z.std(axis=0)], rtol=1e-5, atol=1e-6)
    for c in range(10):
        own = z[y.numpy() == c]
        expected = np.array([own.mean(axis=0), own.std(axis=0)]) if len(own) > 1 else ABSENT
        np.testing.assert_allclose(found[1 + c], np.broadcast_to(expected, (2, 3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        perform(client, "describe", get_arrays(network), labels=False).arrays[MOMENTS], found[:1]
    )


def test_a_single_example_is_described_and_none_is_not(tmp_path: Path) -> None:
    network = build("mlp", SHAPE, 10, 1)
    client = make_client(_examples(1), network, folder=tmp_path, method="flux")
    found = perform(client, "describe", get_arrays(network), labels=True).arrays[MOMENTS]
    assert np.isfinite(found).all()
    assert not found[0, 1].any()
    empty = make_client(_examples(0), network, folder=tmp_path, method="flux")
    with pytest.raises(RunError, match="no examples to describe"):
        perform(empty, "describe", get_arrays(network), labels=True)


def test_each_group_of_moments_has_a_scale_of_its_own() -> None:
    moments = np.random.default_rng(1).normal(size=(5, 3, 2, 4))
    moments[:, 2] = ABSENT
    ranges = np.stack([moments.min(axis=(0, 3)), moments.max(axis=(0, 3))], axis=-1)
    found = scaled(moments, ranges)
    for group in range(3):
        for kind in range(2):
            values = moments[:, group, kind]
            np.testing.assert_allclose(
                found[:, group, kind], MinMaxScaler().fit_transform(values.reshape(-1, 1)).reshape(values.shape)
            )


def test_dense_clusters_are_the_connected_ones() -> None:
    rng = np.random.default_rng(1)
    centers = np.array([[0.0, 0], [10, 0], [0, 10], [50, 50], [90, 0]])
    points = np.vstack(
        [center + 0.2 * rng.normal(size=(n, 2)) for center, n in zip(centers, (6, 5, 4, 1, 1), strict=True)]
    )
    clusters = dense(points, 1.0)
    assert len({*clusters}) == clusters.max() + 1
    nearest = np.sort(cdist(points, points) + np.diag([np.inf] * len(points)), axis=1)[:, 0]
    near = cdist(points, points)
    radii = [radius for radius in nearest if _same(clusters, connected_components(near <= radius)[1])]
    assert radii  # the radius is one of the distances to a nearest neighbour
    assert _same(dense(points, 2.0), np.repeat([0, 1, 2, 3, 4], (6, 5, 4, 1, 1)))
    assert dense(points[:1], 1.0).tolist() == [0]
    assert dense(np.array([[0.0], [0.1], [5.0], [5.1]]), 1.5).tolist() == [0, 0, 1, 1]  # two are enough
    assert dense(np.ones((3, 2)), 1.0).tolist() == [0, 0, 0]


def test_the_radius_is_the_distance_at_the_elbow_and_who_is_alone_comes_last() -> None:
    """Nearest distances 5, 5, 1.2, 1, 1 lie farthest below the line from 5 to 1 at the third."""
    points = np.array([[0.0], [1.2], [2.2], [20.0], [25.0]])
    assert dense(points, 1.0).tolist() == [0, 0, 0, 1, 2]
    assert dense(points, 0.9).tolist() == [1, 0, 0, 2, 3]  # 1.08: the first is alone
    assert dense(points, 4.2).tolist() == [0, 0, 0, 1, 1]
    assert dense(np.array([[50.0], [0.0], [1.2], [2.2]]), 1.0).tolist() == [1, 0, 0, 0]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return len({*one}) == len({*zip(one.tolist(), other.tolist(), strict=True)}) == len({*other})


def test_clients_without_labels_and_new_ones_get_the_nearest_cluster(run: Runs) -> None:
    """With six clients of which one is new and one has no labels; the clustering is that of round 1."""
    keys: dict[str, Value] = {"num-clients": 6, "unseen-fraction": 0.17, "labeled-fraction": 0.8, "rounds": 1}
    path = run("run", nodes=1, method="flux", **keys, **{"flux.warmup-rounds": 0})
    rows = [line.split(",") for line in (path / "clients.csv").read_text().splitlines()]
    column, group = rows[0].index("cluster"), rows[0].index("group")
    checkpoint = read_checkpoint(path)
    told = [Reply.unpack(m.content) for m in run.grid.received if "metrics" in str(m.content)]
    [everyone, strangers] = [reply for reply in told if MOMENTS in reply.arrays]
    lo, hi = everyone.arrays[MOMENTS].min(axis=(0, 3))[0], everyone.arrays[MOMENTS].max(axis=(0, 3))[0]
    scale = lambda moments: (moments - lo[:, None]) / (hi - lo)[:, None]  # noqa: E731
    places = np.array([checkpoint.facts["own"]["places"][client] for client in everyone.clients])
    centers = [scale(everyone.arrays[MOMENTS][places == c, 0]).mean(axis=0) for c in range(places.max() + 1)]
    assert len(strangers.clients) == 2
    for client, moments in zip(strangers.clients, strangers.arrays[MOMENTS][:, 0], strict=True):
        row = next(row for row in rows if row[0] == client)
        assert row[group] in ("unseen", "unlabeled")
        assert int(row[column]) == np.argmin([np.linalg.norm(scale(moments) - center) for center in centers])


def test_a_client_that_trains_keeps_its_cluster_and_one_that_is_tested_does_not() -> None:
    strategy = _strategy("flux", ("late",))
    strategy._extractor, strategy._range = {"a": np.ones(1)}, np.array([[0.0, 1.0], [0.0, 1.0]])
    strategy._centers = np.array([[[0.1], [0.1]], [[0.9], [0.9]]])
    outcome = Outcome(["late"], {MOMENTS: np.full((1, 1, 2, 1), 0.8)}, {})
    round: Any = SimpleNamespace(ask=lambda *args, **options: outcome)
    for evaluation in (True, False):
        assert strategy.locate(round, ["late"], {}, evaluation=evaluation) == ({"late": 1}, {})
        assert ("late" in strategy.places) == (not evaluation)


@pytest.mark.parametrize("method", ["flux", "fl-hc"])
def test_a_run_that_ends_before_its_clustering_is_warned_of(method: str, caplog: pytest.LogCaptureFixture) -> None:
    _strategy(method, rounds=3, **{f"{method}.warmup-rounds": 3})
    assert f"{method}.warmup-rounds is 3 and rounds is 3" in caplog.text
