"""MDM as a run: equal to an EM over all clients, sums alone, the choice of K, privacy, resuming, mistakes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from scipy.stats import chi2, dirichlet_multinomial

from florilegium.apps.runs.personal import personalise
from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.wire import Reply, Request
from florilegium.clients.mdm import MDMClient
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.dirichlet_multinomial import Mixture, initial, update
from florilegium.partitions.federation import federate
from florilegium.partitions.mdm_params import read_law
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.mdm import MDM, choose
from tests.em import em, start
from tests.grid import run_app
from tests.runs import Runs
from tests.support import config, perform, settings

KEYS: dict[str, Value] = {
    "method": "mdm", "model": "linear", "dataset": "histograms", "partitioner": "natural", "num-clients": 40,
    "samples-per-client": 12, "mdm-params": "medium-2", "participation": 1.0, "rounds": 4, "evaluate-every": 0,
    "mdm.components": "2", "mdm.tolerance": 0.0, "mdm.restarts": 1,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _summary(path: Path) -> dict:
    return json.loads((path / "summary.json").read_text())


def _counts(**keys: Value) -> np.ndarray:
    federation, dataset = federate(settings(**{**KEYS, **keys}))
    return federation.class_counts(dataset)


class TestEM:
    def test_a_run_is_an_em_over_all_clients(self, run: Runs) -> None:
        """Start and every update to 1e-10 of one written anew, over the whole table of histograms."""
        counts, history = _counts(), read_checkpoint(run("all")).state
        draws = [numpy_generator(1, "client", str(i), "component", 2).integers(2) for i in range(40)]
        assert 5 < sum(draws) < 35
        mixture = start(counts, np.array(draws), 2, np.arange(1, 14))
        for step in range(4):
            mixture = em(counts, mixture)
            np.testing.assert_allclose(history["tau"][step], mixture.tau, rtol=0, atol=1e-10)
            np.testing.assert_allclose(history["alpha"][step], mixture.alpha, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("nodes", [1, 3])
    def test_packing_changes_nothing(self, run: Runs, nodes: int) -> None:
        one, other = read_checkpoint(run("two")).state, read_checkpoint(run("other", nodes)).state
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, rtol=1e-12, atol=1e-14)

    def test_the_reported_likelihood_is_scipys_and_never_falls(self, run: Runs) -> None:
        path = run("course", rounds=6)
        course = [step[0] for step in _summary(path)["mdm"]["course"]]
        assert all(b >= a - 1e-9 for a, b in pairwise(course))
        history = read_checkpoint(path).state
        τ, α = history["tau"][4], history["alpha"][4]  # of which round 6 measures the likelihood
        pmf = np.stack([dirichlet_multinomial.pmf(_counts(), α[k], 12) for k in range(2)], axis=1)
        assert course[5] == pytest.approx(np.log(pmf @ τ).mean(), abs=1e-8)

    def test_bins_of_sizes_and_columns_are_counted_alike(self, run: Runs) -> None:
        keys = {"dataset": "digits", "partitioner": "dirichlet", "samples-per-client": 0, "num-clients": 12,
                "mdm.size-bins": "1,50,100,2000", "rounds": 3}  # fmt: skip
        found = _summary(run("bins", **keys))["mdm"]
        sizes = _counts(**keys).sum(axis=1)
        shares = np.histogram(sizes, [1, 50, 100, 2000])[0] / 12
        assert found["edges"] == [1, 50, 100, 2000]
        np.testing.assert_allclose(np.array(found["tau"]) @ found["pi"], shares, atol=1e-9)

    def test_a_run_ends_when_the_likelihood_does_not_change(self, run: Runs) -> None:
        path = run("short", **{"rounds": 500, "mdm.components": "1", "mdm.tolerance": 1e-3})
        course = [step[0] for step in _summary(path)["mdm"]["course"]]
        assert 2 < len(course) < 500
        assert abs(course[-1] - course[-2]) < 1e-3 <= abs(course[-2] - course[-3])
        assert _summary(path)["rounds"] == len(course)
        again = run("short", resume="short", **{"rounds": 500, "mdm.components": "1", "mdm.tolerance": 1e-3})
        assert _summary(again)["rounds"] == len(course)

    def test_all_mixtures_must_have_stopped_changing(self, run: Runs) -> None:
        keys = {"mdm.components": "1,2", "mdm.validation-fraction": 0.3, "mdm.tolerance": 1e-3, "rounds": 500}
        course = np.array(_summary(run("both", **keys))["mdm"]["course"])
        changes = np.abs(np.diff(course, axis=0))
        assert (changes[-1] < 1e-3).all()
        assert (changes[:-1].max(axis=1) >= 1e-3).all()
        assert (changes[:-1].min(axis=1) < 1e-3).any()  # one of them had stopped before

    def test_a_sample_of_clients_does_not_end_a_run(self, run: Runs) -> None:
        path = run("sampled", **{"participation": 0.5, "rounds": 8, "mdm.tolerance": 1e9})
        assert _summary(path)["rounds"] == 8

    def test_an_empty_component_starts_anew_once(self, run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        def starved(sums, edges, noise):
            mixture = initial(sums, edges, noise)
            return Mixture(np.array([1.0, 0.0]), mixture.pi, mixture.alpha, mixture.edges)

        monkeypatch.setattr("florilegium.strategies.mdm.initial", starved)
        path = run("empty", rounds=3)
        assert _summary(path)["mdm"]["reseeded"] == [{"round": 1, "k": 2, "start": 0, "component": 1}]
        assert min(_summary(path)["mdm"]["tau"]) > 0.01
        last = run("late", rounds=1)
        assert _summary(last)["mdm"]["reseeded"] == []  # no round is left to fit it


class TestStarts:
    KEYS: ClassVar[dict[str, Value]] = {"mdm.restarts": 3}

    def test_each_start_is_an_em_of_its_own(self, run: Runs) -> None:
        """Clients draw a component for each start in turn; the starts do not meet in the rounds."""
        history, counts = read_checkpoint(run("three", rounds=2, **self.KEYS)).state, _counts()
        generators = [numpy_generator(1, "client", str(i), "component", 2) for i in range(40)]
        for index in range(3):
            draws = np.array([int(generator.integers(2)) for generator in generators])
            mixture = start(counts, draws, 2, np.arange(1, 14))
            for step in range(2):
                mixture = em(counts, mixture)
                rows = slice(2 * index, 2 * index + 2)
                np.testing.assert_allclose(history["tau"][step][rows], mixture.tau, rtol=0, atol=1e-10)
                np.testing.assert_allclose(history["alpha"][step][rows], mixture.alpha, rtol=0, atol=1e-10)

    def test_the_start_with_the_best_likelihood_is_kept(self, run: Runs) -> None:
        """By the mean of the last ten rounds, of each K alone; K is then chosen among these."""
        path = run("several", rounds=12, **self.KEYS, **{"mdm.components": "1,2", "mdm.validation-fraction": 0.3})
        found, history = _summary(path)["mdm"], read_checkpoint(path).state
        scores = np.array(found["course"])[2:].mean(axis=0)
        assert scores.shape == (6,)
        best = [int(scores[:3].argmax()), 3 + int(scores[3:].argmax())]
        assert found["mixture"] == best[[1, 2].index(found["k"])]
        row = {1: found["mixture"], 2: 3 + 2 * (found["mixture"] - 3)}[found["k"]]
        np.testing.assert_array_equal(found["alpha"], history["alpha"][-1][row : row + found["k"]])
        assert [entry["k"] for entry in found["compared"]] == [1, 2]
        alone = run("alone", rounds=12, **self.KEYS)
        scores = np.array(_summary(alone)["mdm"]["course"])[2:].mean(axis=0)
        assert len({*scores}) == 3
        assert _summary(alone)["mdm"]["mixture"] == scores.argmax()

    def test_held_out_clients_choose_in_a_private_run(self, run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        """Likelihoods of the fitted clients are not sent; the noise is left out to see what is chosen."""
        monkeypatch.setattr(MDM, "_scale", lambda self, releases: 1e-12)
        keys = {**PRIVATE, **self.KEYS, "mdm.clip": 1e6, "mdm.validation-fraction": 0.3, "mdm.size-bins": "1,13"}
        path = run("private", **{**keys, "mdm.max-size": 0})
        found, history = _summary(path)["mdm"], read_checkpoint(path).state
        asked = [m for m in run.grid.sent if m.metadata.message_type == "evaluate"]
        clients = [int(c) for m in asked for c in Request.unpack(m.content, trains=False, run="").clients]
        assert 4 < len(clients) < 24
        means = []
        for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
            τ, α = history["tau"][-1][rows], history["alpha"][-1][rows]
            pmf = np.stack([dirichlet_multinomial.pmf(_counts()[clients], α[k], 12) for k in range(2)], axis=1)
            means.append(np.log(pmf @ τ).mean())
        assert found["mixture"] == int(np.argmax(means))

    def test_several_starts_are_the_default_but_in_private_runs(self) -> None:
        assert parse(config(**{**KEYS, "mdm.restarts": 0}))[1].fitted == [2] * 8
        assert parse(config(**{**KEYS, **PRIVATE, "mdm.restarts": 0, "mdm.components": "1,2"}))[1].fitted == [1, 2]


class TestSumsOnly:
    def test_the_server_sees_sums_alone(self, run: Runs) -> None:
        run("traffic", **{"mdm.components": "1,2", "mdm.validation-fraction": 0.3})
        shapes = {"sizes": (3, 12), "first": (3, 10), "second": (3, 10), "weights": (3,), "numerator": (3, 10),
                  "denominator": (3,), "likelihood": (2,), "relative": (2,), "products": (2, 2)}  # fmt: skip
        seen = set()
        for message in run.grid.received:
            if message.metadata.message_type == "query.roster":
                continue
            answer = Reply.unpack(message.content)
            assert len(answer.clients) > 1
            assert {name: array.shape for name, array in answer.arrays.items()}.items() <= shapes.items()
            for name, values in answer.metrics.items():  # the same for every client
                assert len(set(values)) == 1, name
            seen |= answer.arrays.keys()
        assert seen == shapes.keys()

    def test_clients_that_choose_k_do_nothing_else(self, run: Runs) -> None:
        run("apart", **{"mdm.components": "1,2", "mdm.validation-fraction": 0.3, "evaluate-every": 2})
        asked: dict[str, set[str]] = {}
        for message in run.grid.sent:
            if message.metadata.message_type != "query.roster":
                trains = message.metadata.message_type == "train"
                request = Request.unpack(message.content, trains=trains, run="")
                asked.setdefault(request.phase, set()).update(request.clients)
        assert asked["initialise"] == asked["expect"]
        assert not asked["compare"] & asked["expect"]
        assert len(asked["compare"] | asked["expect"]) == 40
        assert 4 < len(asked["compare"]) < 24  # 12 on average


class TestChoice:
    @pytest.mark.long
    def test_clients_that_took_no_part_choose_k(self, run: Runs) -> None:
        keys = {"dataset": "histograms-5", "mdm-params": "choice", "samples-per-client": 100, "num-clients": 600,
                "mdm.components": "1,2,3,4", "mdm.validation-fraction": 0.5, "rounds": 40}  # fmt: skip
        path = run("choice", **keys)
        found = _summary(path)["mdm"]
        assert found["k"] == 3
        assert len(found["tau"]) == 3
        assert [entry["k"] for entry in found["compared"]] == [1, 2, 3, 4]
        law = read_law(str(path), 0)
        assert law.categories == 5

    def test_the_smallest_of_equals_is_taken(self) -> None:
        rng, n = np.random.default_rng(1), 4000
        base, d = rng.normal(size=n), rng.normal(size=n)
        d = (d - d.mean()) / d.std()
        for errors, expected in ((0.5, 2), (2.0, 3)):  # how many standard errors 3 is better than 2
            scores = np.stack([base - 1, base, base + 0.01 * (d + errors / np.sqrt(n))], axis=1)
            assert choose([1, 2, 3], scores.mean(axis=0), scores.T @ scores / n, n) == expected


PRIVATE = {"mdm.privacy-unit": "client", "mdm.epsilon": 3.0, "mdm.delta": 1e-4, "mdm.clip": 2.0, "mdm.max-size": 12}


def _lone_client(counts: list[int], **keys: Value) -> MDMClient:
    client = object.__new__(MDMClient)
    client.settings, client.hyper = parse(config(**{**KEYS, **PRIVATE, "mdm.components": "1", **keys}))
    client.__dict__.update(_counts=np.array([counts]), data=SimpleNamespace(simulated=True), client_id="0")
    return client


MIXTURE = {"tau": np.ones(1), "pi": np.ones((1, 1)), "alpha": np.full((1, 3), 5.0), "edges": np.array([1, 20])}


class TestPrivacy:
    @pytest.mark.parametrize(("unit", "sensitivity"), [("client", 2.0), ("example", 4.0)])
    def test_epsilon_is_dp_accountings(self, run: Runs, unit: str, sensitivity: float) -> None:
        keys = {"mdm.privacy-unit": unit, "mdm.components": "1,2", "mdm.validation-fraction": 0.3, "evaluate-every": 2}
        facts = _summary(run("private", **{**PRIVATE, **keys}))["privacy"]
        for scale, releases in ((facts["noise"], 5), (facts["comparing_noise"], 2)):  # moments, 4 rounds; 2 evaluations
            accountant = PLDAccountant()
            accountant.compose(SelfComposedDpEvent(GaussianDpEvent(scale / sensitivity), releases))
            assert accountant.get_epsilon(1e-4) == pytest.approx(3.0, rel=1e-2)
        assert facts["epsilon"] == pytest.approx(3.0, rel=1e-2)
        assert (facts["releases"], facts["comparisons"]) == (5, 2)

    @pytest.mark.parametrize("phase", ["initialise", "expect", "compare"])
    def test_contributions_are_clipped(self, phase: str) -> None:
        sent = {
            clip: perform(_lone_client([3, 0, 9], **{"mdm.clip": clip}), phase, MIXTURE).arrays for clip in (1e9, 0.1)
        }
        assert "likelihood" not in sent[0.1]
        whole = np.concatenate([array.ravel() for array in sent[0.1].values()])
        assert np.linalg.norm(whole) <= 0.1 * (1 + 1e-9)
        if phase == "expect":  # weights and steps each have half of the squared bound, and keep their proportions
            assert np.linalg.norm(whole) == pytest.approx(0.1)
            for one, other in (("weights", "sizes"), ("numerator", "denominator")):
                ratios = [sent[clip][one].sum() / sent[clip][other].sum() for clip in sent]
                assert ratios[0] == pytest.approx(ratios[1])

    @pytest.mark.parametrize("phase", ["initialise", "expect", "compare"])
    @pytest.mark.parametrize("counts", [[0, 0, 0], [40, 0, 9]])
    def test_no_client_fails_and_tells_on_itself(self, counts: list[int], phase: str) -> None:
        """One without examples answers zeros; one of a size in no bin counts into the nearest."""
        sent = perform(_lone_client(counts), phase, MIXTURE).arrays
        if not any(counts):
            assert not any(array.any() for array in sent.values())
        elif phase != "compare":
            assert sent["sizes"].sum() > 0

    def test_every_release_has_the_stated_noise(self, run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever an exchange returns is what the nodes answered and σ² times a chi-square variable."""
        noises: dict[str, list[np.ndarray]] = {}
        ask = MDM.ask

        def listen(self, round, cohort, phase, arrays, **more):
            start = len(round._grid.received)
            outcome = ask(self, round, cohort, phase, arrays, **more)
            answers = [Reply.unpack(message.content).arrays for message in round._grid.received[start:]]
            scale = self.comparing_noise if phase == "compare" else self.noise
            for name, array in outcome.arrays.items():
                exact = sum(answer[name] for answer in answers)
                noises.setdefault(phase, []).append(((array - exact) / scale).ravel())
            return outcome

        monkeypatch.setattr(MDM, "ask", listen)
        run("noisy", **{**PRIVATE, "rounds": 3, "mdm.components": "7,8", "mdm.validation-fraction": 0.3})
        sizes = {"initialise": 15 * (12 + 10 + 10), "expect": 3 * 15 * (1 + 12 + 10 + 1), "compare": 2 + 4}
        for phase, size in sizes.items():
            noise = np.concatenate(noises[phase])
            assert len(noise) == size
            low, high = chi2.ppf([1e-4, 1 - 1e-4], size)
            assert low < (noise**2).sum() < high

    def test_each_client_takes_part_independently(self, run: Runs) -> None:
        """So that a client more or less changes a sum by its own clipped contribution: no other one replaces it."""
        keys = {**PRIVATE, "participation": 0.5, "rounds": 12, "mdm.components": "1"}
        run("sampled", **keys)
        asked: dict[int, set[str]] = {}
        for message in run.grid.sent:
            if message.metadata.message_type == "train":
                request = Request.unpack(message.content, trains=True, run="")
                asked.setdefault(request.work.round, set()).update(request.clients)
        sizes = [len(asked[number]) for number in range(13)]  # binomial: mean 20, variance 10
        low, high = chi2.ppf([1e-6, 1 - 1e-6], 13)
        assert low < np.square((np.array(sizes) - 20) / np.sqrt(10)).sum() < high

    def test_of_nobody_noise_alone_is_released(self, run: Runs) -> None:
        keys = {**PRIVATE, "participation": 0.05, "rounds": 12, "mdm.components": "1"}
        found = _summary(run("nobody", **keys))
        trained = [m.content["config"]["round"] for m in run.grid.sent if m.metadata.message_type == "train"]
        assert 3 < len({*trained}) < 13  # of rounds 0 to 12; each is empty with probability 0.13
        assert np.isfinite(found["mdm"]["alpha"]).all()

    def test_cohorts_of_a_fixed_size_are_refused(self, run: Runs) -> None:
        with pytest.raises(ConfigurationError, match=r"cohort-size, oversample: .* independently of the others"):
            run("fixed", **{**PRIVATE, "cohort-size": 20})

    def test_devices_draw_noise_that_nobody_can_repeat(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        federation, dataset = federate(settings(**{"num-clients": 3}))
        nodes = []
        for client in range(3):
            write_device(federation, dataset, client, tmp_path / str(client))
            nodes.append({"data-path": str(tmp_path / str(client)), "client-id": f"site-{client}"})
        drawn: list[str] = []
        for module in ("florilegium.strategies.mdm", "florilegium.clients.mdm"):
            secret = __import__(module, fromlist=["x"]).secret_generator
            monkeypatch.setattr(f"{module}.secret_generator", lambda m=module, s=secret: drawn.append(m) or s())
        keys = {**KEYS, **PRIVATE, "dataset": "digits", "partitioner": "classes", "num-clients": 3, "rounds": 1,
                "samples-per-client": 0, "mdm.max-size": 2000, "mdm.components": "1", "run-name": "devices",
                "runs-dir": str(tmp_path / "runs"), "model": "mlp"}  # fmt: skip
        run_app(config(**keys), nodes)
        assert drawn.count("florilegium.strategies.mdm") == 3 + 4  # of the start, and of the round
        assert drawn.count("florilegium.clients.mdm") == 3  # each its component

    def test_noise_alone_rules_out_no_size(self) -> None:
        """A bin that the noise made negative counts as much as the noise."""
        sums = {"weights": np.array([50.0]), "sizes": np.array([[60.0, -40.0]]), "numerator": np.ones((1, 2)),
                "denominator": np.ones(1)}  # fmt: skip
        mixture = Mixture(np.ones(1), np.full((1, 2), 0.5), np.ones((1, 2)), np.array([1, 2, 3]))
        np.testing.assert_allclose(update(mixture, sums, 20.0).pi, [[0.75, 0.25]])

    def test_a_private_run_reports_nothing_exact(self, run: Runs) -> None:
        path = run("chosen", **{**PRIVATE, "mdm.components": "1,2", "mdm.validation-fraction": 0.3})
        found = _summary(path)["mdm"]
        assert found["course"] == []
        assert [set(entry) for entry in found["compared"]] == [{"k", "relative"}] * 2
        assert np.sum(found["tau"]) == pytest.approx(1)

    def test_a_hopeless_budget_is_warned_of(self, run: Runs, caplog: pytest.LogCaptureFixture) -> None:
        run("hopeless", **{**PRIVATE, "rounds": 20})
        assert "a component stands for 20 clients of a cohort, the noise for" in caplog.text

    def test_a_resumed_run_cannot_have_another_budget(self, run: Runs) -> None:
        run("begun", **{**PRIVATE, "evaluate-every": 1})
        with pytest.raises(ConfigurationError, match="the run began with another privacy budget"):
            run("begun", **{**PRIVATE, "resume": "begun", "rounds": 40})


class TestResume:
    def test_a_broken_run_goes_on_to_the_same_end(self, run: Runs) -> None:
        keys = {"evaluate-every": 1, "mdm.components": "1,2", "mdm.validation-fraction": 0.3}
        whole, broken = run.whole_and_broken(3, **keys)
        for name, array in read_checkpoint(whole).state.items():
            np.testing.assert_array_equal(read_checkpoint(broken).state[name], array)
        mine, theirs = (_summary(path)["mdm"] for path in (broken, whole))
        assert mine == theirs


class TestMistakes:
    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"mdm.components": "40"}, r"40 components need more clients than that in a round; there are 40"),
            ({"mdm.components": "5", "cohort-size": 5}, r"5 components need more clients .* in a round; there are 5"),
            ({"mdm.components": "2,2"}, r"mdm\.components: '2,2' has a number twice"),
            ({"mdm.bins": "60,20"}, r"mdm\.bins: '60,20' is not a list of increasing edges"),
            ({"mdm.max-size": 12, "mdm.size-bins": "1,20"}, r"mdm\.max-size: mdm\.size-bins says already"),
            ({"mdm.size-bins": "1,5,12"}, r"40 of 40 clients have a number of examples that no bin holds"),
            ({"mdm.privacy-unit": "client"}, r"a private run must not take the largest size from the clients"),
            ({"mdm.components": "1,2", "mdm.validation-fraction": 0.0}, r"0 of 40 clients are none"),
            ({"mdm.max-size": 13}, r"the last bin begins with 13 examples, but no client has more than 12; lower it"),
            ({"mdm.size-bins": "1,10,13,20"}, r"the last bin begins with 13 examples"),
            ({"mdm.feature": "race"}, r"mdm\.feature: 'race' is no feature of 'histograms'"),
            ({"rounds": 0}, r"rounds: 'mdm' needs at least 1"),
        ],
    )
    def test_wrong_keys_are_explained(self, run: Runs, keys: dict[str, Value], said: str) -> None:
        with pytest.raises((ConfigurationError, RunError), match=said):
            run("wrong", **keys)

    def test_clients_out_of_the_bins_are_told_nothing_of_their_own(self) -> None:
        client = _lone_client([40, 0, 9], **{"mdm.privacy-unit": "none"})
        with pytest.raises(RunError, match=r"in none of the bins of sizes, which hold 1 to 19") as caught:
            perform(client, "expect", MIXTURE)
        assert "49" not in str(caught.value)

    @pytest.mark.parametrize("size", [1, 19])
    def test_the_bins_hold_their_first_and_last_number(self, size: int) -> None:
        perform(_lone_client([size, 0, 0], **{"mdm.privacy-unit": "none"}), "expect", MIXTURE)

    def test_there_are_no_models(self, run: Runs, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="method 'mdm' makes no models of clients"):
            personalise(run("none"), tmp_path / "model", "3")
        for phase in ("train", "test"):
            with pytest.raises(RunError, match="no models of clients"):
                perform(_lone_client([1, 2, 3]), phase, {})
