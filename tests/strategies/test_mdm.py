"""MDM as a run: equal to an EM over all clients, sums alone, the choice of K, privacy, resuming, mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from flwr.app import Message
from scipy.stats import chi2, dirichlet_multinomial

from apps.settings import parse
from clients.mdm import MDMClient
from clients.wire import Reply
from common.errors import ConfigurationError, RunError
from common.settings import Value
from partitions.dirichlet_multinomial import Mixture, initial, statistics, update
from partitions.federation import federate
from partitions.mdm_params import read_law
from strategies.mdm import MDM, choose
from strategies.run_folder import read_checkpoint
from tests.grid import run_app
from tests.support import config, settings

Run = Callable[..., Path]
KEYS: dict[str, Value] = {
    "method": "mdm", "model": "linear", "dataset": "histograms", "partitioner": "natural", "num-clients": 40,
    "samples-per-client": 12, "mdm-params": "medium-2", "participation": 1.0, "rounds": 4, "evaluate-every": 0,
    "mdm.components": "2", "mdm.tolerance": 0.0,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that carries out a run in this process and returns its folder."""

    def go(
        name: str, nodes: int = 2, intercept: Callable[[Message], Message | None] | None = None, **keys: Value
    ) -> Path:
        names = {} if "resume" in keys else {"run-name": name}
        go.grid = run_app(config(**{**KEYS, **keys, **names, "runs-dir": str(tmp_path)}), nodes, intercept=intercept)
        return tmp_path / name

    return go


def _summary(path: Path) -> dict:
    return json.loads((path / "summary.json").read_text())


def _counts(**keys: Value) -> np.ndarray:
    federation, dataset = federate(settings(**{**KEYS, **keys}))
    return federation.class_counts(dataset)


class TestEM:
    def test_a_run_is_an_em_over_all_clients(self, run: Run) -> None:
        """Every update to 1e-10 of one over the whole table; that one is compared with scipy in tests/models."""
        path = run("all")
        counts, history = _counts(), read_checkpoint(path).state
        mixture = Mixture(history["tau"][0], np.ones((2, 12)) / 12, history["alpha"][0], np.arange(1, 14))
        for step in range(1, 4):
            # All clients have 12 samples, so that Π says nothing from round 1 on.
            mixture = update(mixture, statistics(counts, mixture))
            np.testing.assert_allclose(history["tau"][step], mixture.tau, rtol=0, atol=1e-10)
            np.testing.assert_allclose(history["alpha"][step], mixture.alpha, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("nodes", [1, 3])
    def test_packing_changes_nothing(self, run: Run, nodes: int) -> None:
        one, other = read_checkpoint(run("two")).state, read_checkpoint(run("other", nodes)).state
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, rtol=1e-12, atol=1e-14)

    def test_the_reported_likelihood_is_scipys_and_never_falls(self, run: Run) -> None:
        path = run("course", rounds=6)
        course = [step[0] for step in _summary(path)["mdm"]["course"]]
        assert all(b >= a - 1e-9 for a, b in pairwise(course))
        history = read_checkpoint(path).state
        τ, α = history["tau"][4], history["alpha"][4]  # of which round 6 measures the likelihood
        pmf = np.stack([dirichlet_multinomial.pmf(_counts(), α[k], 12) for k in range(2)], axis=1)
        assert course[5] == pytest.approx(np.log(pmf @ τ).mean(), abs=1e-8)

    def test_bins_of_sizes_and_columns_are_counted_alike(self, run: Run) -> None:
        keys = {"dataset": "digits", "partitioner": "dirichlet", "samples-per-client": 0, "num-clients": 12,
                "mdm.size-bins": "1,50,100,2000", "rounds": 3}  # fmt: skip
        found = _summary(run("bins", **keys))["mdm"]
        sizes = _counts(**keys).sum(axis=1)
        shares = np.histogram(sizes, [1, 50, 100, 2000])[0] / 12
        assert found["edges"] == [1, 50, 100, 2000]
        np.testing.assert_allclose(np.array(found["tau"]) @ found["pi"], shares, atol=1e-9)

    def test_a_run_ends_when_the_likelihood_does_not_change(self, run: Run) -> None:
        path = run("short", **{"rounds": 500, "mdm.components": "1", "mdm.tolerance": 1e-3})
        course = [step[0] for step in _summary(path)["mdm"]["course"]]
        assert 2 < len(course) < 500
        assert abs(course[-1] - course[-2]) < 1e-3 <= abs(course[-2] - course[-3])
        assert _summary(path)["rounds"] == len(course)

    def test_an_empty_component_starts_anew_once(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def starved(sums, edges):
            mixture = initial(sums, edges)
            return Mixture(np.array([1.0, 0.0]), mixture.pi, mixture.alpha, mixture.edges)

        monkeypatch.setattr("strategies.mdm.initial", starved)
        path = run("empty", rounds=3)
        assert _summary(path)["mdm"]["reseeded"] == [{"round": 1, "k": 2, "component": 1}]
        assert min(_summary(path)["mdm"]["tau"]) > 0.01


class TestSumsOnly:
    def test_the_server_sees_sums_alone(self, run: Run) -> None:
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


class TestChoice:
    def test_clients_that_took_no_part_choose_k(self, run: Run) -> None:
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


PRIVATE = {"mdm.privacy-unit": "client", "mdm.epsilon": 3.0, "mdm.delta": 1e-4, "mdm.clip": 2.0}


class TestPrivacy:
    @pytest.mark.parametrize(("unit", "sensitivity"), [("client", 2.0), ("example", 4.0)])
    def test_epsilon_is_dp_accountings(self, run: Run, unit: str, sensitivity: float) -> None:
        facts = _summary(run("private", **{**PRIVATE, "mdm.privacy-unit": unit}))["privacy"]
        accountant = PLDAccountant()
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(facts["noise"] / sensitivity), 5))  # moments, 4 rounds
        assert facts["epsilon"] == pytest.approx(accountant.get_epsilon(1e-4), rel=1e-3)
        assert facts["epsilon"] == pytest.approx(3.0, rel=1e-2)
        assert facts["releases"] == 5

    def test_contributions_are_clipped_as_a_whole(self) -> None:
        client = object.__new__(MDMClient)
        client.__dict__["histogram"] = np.array([[3, 0, 9]])
        mixture = {"tau": np.ones(1), "pi": np.ones((1, 1)), "alpha": np.full((1, 3), 5.0), "edges": np.array([1, 20])}
        sent = {}
        for clip in (1e9, 0.5):
            keys = config(**{**KEYS, **PRIVATE, "mdm.components": "1", "mdm.clip": clip})
            client.settings, client.hyper = parse(keys)
            sent[clip] = client.perform(mixture, {"phase": "expect", "round": 1}).arrays
        assert "likelihood" not in sent[0.5]
        whole = np.concatenate([array.ravel() for array in sent[0.5].values()])
        assert np.linalg.norm(whole) == pytest.approx(0.5)
        for name, array in sent[1e9].items():
            np.testing.assert_allclose(sent[0.5][name] / sent[0.5]["weights"], array)

    def test_the_noise_is_the_stated_one(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """On all sums of the first exchange, against a run whose noise is left out: σ² times a chi-square variable."""
        released: list[list[np.ndarray]] = []
        ask = MDM.ask

        def listen(self, *args, **kwargs):
            outcome = ask(self, *args, **kwargs)
            released[-1].append(np.concatenate([outcome.arrays[name].ravel() for name in sorted(outcome.arrays)]))
            return outcome

        monkeypatch.setattr(MDM, "ask", listen)
        keys = {**PRIVATE, "rounds": 1, "mdm.components": "9"}
        released.append([])
        path = run("noisy", **keys)
        monkeypatch.setattr("strategies.mdm.draw", lambda rng, kind, scale, shape: np.zeros(shape))
        released.append([])
        run("exact", **keys)
        noise = (released[0][0] - released[1][0]) / _summary(path)["privacy"]["noise"]
        assert len(noise) == 9 * (10 + 10 + 12)
        low, high = chi2.ppf([1e-4, 1 - 1e-4], len(noise))
        assert low < (noise**2).sum() < high
        assert abs(noise.mean()) < 4 / np.sqrt(len(noise))

    def test_a_private_run_chooses_and_reports_nothing_exact(self, run: Run) -> None:
        path = run("chosen", **{**PRIVATE, "mdm.components": "1,2", "mdm.validation-fraction": 0.3})
        found = _summary(path)["mdm"]
        assert found["course"] == []
        assert np.isfinite([entry["log_likelihood"] for entry in found["compared"]]).all()
        assert np.sum(found["tau"]) == pytest.approx(1)


class TestResume:
    def test_a_broken_run_goes_on_to_the_same_end(self, run: Run, tmp_path: Path) -> None:
        keys = {"evaluate-every": 1, "mdm.components": "1,2", "mdm.validation-fraction": 0.3}
        whole = run("whole", nodes=1, **keys)

        def stop(message: Message) -> None:
            if message.metadata.message_type == "train" and message.content["config"]["round"] == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run("broken", nodes=1, intercept=stop, **keys)
        run("broken", nodes=1, resume="broken", **keys)
        for name, array in read_checkpoint(whole).state.items():
            np.testing.assert_array_equal(read_checkpoint(tmp_path / "broken").state[name], array)
        mine, theirs = (_summary(tmp_path / name)["mdm"] for name in ("broken", "whole"))
        assert mine == theirs


class TestMistakes:
    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"mdm.components": "40"}, r"mdm\.components: 40 components need more clients than that; there are 40"),
            ({"mdm.components": "1,2", "mdm.validation-fraction": 0.0}, r"0 of 40 clients are none"),
            ({"mdm.max-size": 13}, r"the last bin begins with 13 examples, but no client has more than 12; lower it"),
            ({"mdm.size-bins": "1,10,13,20"}, r"the last bin begins with 13 examples"),
            ({"mdm.feature": "race"}, r"mdm\.feature: 'race' is no feature of 'histograms'"),
            ({"rounds": 0}, r"rounds: 'mdm' needs at least 1"),
        ],
    )
    def test_wrong_keys_are_explained(self, run: Run, keys: dict[str, Value], said: str) -> None:
        with pytest.raises((ConfigurationError, RunError), match=said):
            run("wrong", **keys)

    def test_bins_that_do_not_hold_the_clients_are_named(self, run: Run) -> None:
        with pytest.raises(RunError, match=r"its 12 examples are in none of the bins of sizes, which hold 1 to 11"):
            run("outside", **{"mdm.size-bins": "1,5,12"})
