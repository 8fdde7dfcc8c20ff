"""Reports: which runs are pooled, compared or separated, and what the tables and pictures say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from scipy.stats import ttest_1samp, ttest_rel

from florilegium.apps.reports.notes import notes
from florilegium.apps.reports.pairs import pairs
from florilegium.apps.reports.pictures import curve, places, plot_pools, reader
from florilegium.apps.reports.pools import Pool, ranges, sections
from florilegium.apps.reports.run_records import load_run
from florilegium.apps.reports.tables import figures_table, pairs_table
from florilegium.apps.reports.writing import write_report
from florilegium.common.errors import RunError
from florilegium.common.pages import markdown
from florilegium.common.settings import Value
from florilegium.strategies.folder.run_folder import RunFolder
from tests.apps.reports.made import Accuracies, made_accuracies, made_run
from tests.support import config


class TestPools:
    def test_runs_that_differ_in_the_seed_alone_are_pooled(self) -> None:
        (section,) = sections(
            [made_run(seed=2), made_run("local"), made_run(seed=1), made_run(seed=3, **{"runs-dir": "/tmp"})]
        )
        assert [(pool.label, pool.seeds) for pool in section.pools] == [("fedavg", [1, 2, 3]), ("local", [1])]
        assert notes(section) == [
            "Seeds are not the same: 1-3 (fedavg), 1 (local). Paired differences count common seeds alone."
        ]

    @pytest.mark.parametrize("keys", [{"dataset": "mnist"}, {"num-clients": 7}, {"classes-per-client": 4}])
    def test_other_clients_or_data_get_a_section_of_their_own(self, keys: dict[str, Value]) -> None:
        first, second = sections([made_run(), made_run("local", **keys)])
        assert [pool.label for pool in (*first.pools, *second.pools)] == ["fedavg", "local"]
        assert str(next(iter(keys.values()))) in second.title()

    def test_changed_data_of_the_same_name_too(self) -> None:
        changed = made_run("local")
        changed.origins["dataset"] = "e"  # type: ignore[index]
        assert len(sections([made_run(), changed])) == 2

    def test_settings_tell_the_pools_of_a_method_apart(self) -> None:
        (section,) = sections([made_run("fedprox"), made_run("fedprox", **{"fedprox.mu": 1.0}), made_run("local")])
        assert [pool.label for pool in section.pools] == ["fedprox", "fedprox (mu 1.0)", "local"]

    def test_a_repeated_run_is_not_counted_twice(self) -> None:
        (section,) = sections([made_run(), made_run()])
        assert section.pools[0].seeds == [1]
        assert "is not counted" in notes(section)[0]

    def test_unequal_effort_is_noted(self) -> None:
        (section,) = sections([made_run(), made_run("local", **{"local-epochs": 3, "rounds": 9})])
        assert {note.split(" is ")[0] for note in notes(section)} == {"Not equal: rounds", "Not equal: local-epochs"}
        assert "(fedavg)" in notes(section)[0]

    def test_of_many_methods_only_the_exceptions_are_named(self) -> None:
        methods = ("fedavg", "fedprox", "ditto", "scaffold")
        (section,) = sections([*map(made_run, methods), made_run("local", **{"rounds": 9})])
        assert notes(section) == ["Not equal: rounds is 9 (local), 30 (the others)."]

    @pytest.mark.parametrize(("method", "label"), [("fedavg", "fedavg+ft"), ("fedbabu", "fedbabu"), ("ditto", "ditto")])
    def test_only_what_is_tuned_as_an_option_is_called_so(self, method: str, label: str) -> None:
        assert made_run(method, **{"finetune-epochs": 1}).method == label

    def test_data_made_from_the_seed_are_pooled(self) -> None:
        runs = [made_run("feddp-kmeans", seed, dataset="gaussian-mixture", model="centers") for seed in (1, 2)]
        runs = [replace(run, origins={"dataset": f"d{run.seed}", "partition": f"p{run.seed}"}) for run in runs]
        (section,) = sections(runs)
        assert section.pools[0].seeds == [1, 2]

    def test_other_code_of_a_method_is_another_pool(self) -> None:
        runs = [made_run(seed=1), made_run(seed=2)]
        runs[1] = replace(runs[1], origins={**runs[1].origins, "code of mine": "b"})
        runs[0] = replace(runs[0], origins={**runs[0].origins, "code of mine": "a"})
        (section,) = sections(runs)
        assert [pool.label for pool in section.pools] == ["fedavg (code of mine a)", "fedavg (code of mine b)"]

    def test_what_is_measured_on_other_examples_is_not_compared(self) -> None:
        keys: dict[str, Value] = {"validation-fraction": 0.2}
        held = made_run("local", **keys, **{"evaluate-on": "validation"})
        first, second = sections([made_run(**keys), held])
        assert "evaluate-on = validation" in second.title()
        assert "evaluate-on" not in first.title()

    def test_seeds_in_a_row_are_a_range(self) -> None:
        assert ranges([3, 1, 2, 8, 9, 2, 12]) == "1-3, 8, 9, 12"


class TestPairs:
    def test_differences_are_those_of_a_paired_test(self) -> None:
        a, b = made_accuracies(30, 1), made_accuracies(30, 2)
        (section,) = sections([made_run(accuracies=a), made_run("local", accuracies=b)])
        (pair,) = pairs(section)
        low, high = ttest_rel([*b.values()], [*a.values()]).confidence_interval(0.95)
        over = pair.difference.over_clients
        assert (pair.first, pair.second, over.n) == ("fedavg", "local", 30)
        assert (over.mean - over.margin, over.mean + over.margin) == pytest.approx((low, high))
        row = pairs_table([pair]).rows[0]
        assert row[5:] == [f"{100 * low:+.1f} to {100 * high:+.1f}", "", ""]  # one seed: nothing is known over seeds

    def test_clients_are_compared_with_themselves_alone(self) -> None:
        """In another order, of other groups, and more of them."""
        a = {("seen", "0"): 0.5, ("seen", "1"): 0.7, ("unseen", "2"): 0.0, ("unseen", "3"): 0.0, ("seen", "4"): 0.1}
        b = {("seen", "1"): 0.8, ("seen", "0"): 0.6, ("unseen", "3"): 0.25, ("unseen", "2"): 0.75, ("seen", "9"): 1.0}
        (section,) = sections([made_run(accuracies=a), made_run("local", accuracies=b)])
        found = {pair.group: pair.difference.over_seeds.mean for pair in pairs(section)}
        assert found == {"seen": pytest.approx(0.1), "unseen": pytest.approx(0.5)}

    def test_only_common_seeds_count(self) -> None:
        runs = [
            made_run(seed=1),
            made_run(seed=2),
            made_run("local", 2, {("seen", "0"): 0.6, ("seen", "1"): 0.9}),
            made_run("local", 3),
        ]
        ((pair,),) = [pairs(section) for section in sections(runs)]
        assert pair.seeds == (2,)
        assert pair.difference.over_seeds.mean == pytest.approx(0.15)

    def test_other_partitions_have_other_clients(self) -> None:
        other = made_run("local")
        other.origins["partition"] = "q"  # type: ignore[index]
        (section,) = sections([made_run(), other])
        assert pairs(section) == []
        assert "local and fedavg were not compared: with the same seed, their clients" in " ".join(notes(section))

    def test_clients_that_return_in_every_seed_count_once(self) -> None:
        """The same four clients with two seeds: their means over seeds are the sample, in other words n = 4."""
        gains = {seed: np.random.default_rng(seed).normal(size=4) for seed in (1, 2)}
        for same in ({"partition": "p", "dataset": "d"}, {}):
            runs = []
            for seed, own in gains.items():
                for method, values in (("fedavg", np.zeros(4)), ("local", own)):
                    run = made_run(method, seed, {("seen", str(i)): float(v) for i, v in enumerate(values)})
                    named = [line if same else {**line, "name": f"site-{line['client']}"} for line in run.clients]
                    runs.append(replace(run, clients=named, origins={**run.origins, **same}))
            (section,) = sections(runs)
            (pair,) = pairs(section)
            low, high = ttest_1samp(sum(gains.values()) / 2, 0).confidence_interval(0.95)
            over = pair.difference.over_clients
            assert over.n == 4
            assert (over.mean - over.margin, over.mean + over.margin) == pytest.approx((low, high))

    def test_without_a_common_seed_nothing_is_compared(self) -> None:
        (section,) = sections([made_run(seed=2), made_run("local", 1)])
        assert pairs(section) == []
        assert "they have no common seed" in " ".join(notes(section))

    @pytest.mark.parametrize("b", [{}, {("seen", "0"): 0.5}, {("unseen", "0"): 0.5, ("unseen", "1"): 0.5}])
    def test_without_two_common_clients_there_is_no_difference(self, b: Accuracies) -> None:
        (section,) = sections([made_run(accuracies=made_accuracies(3, 1)), made_run("local", accuracies=b)])
        assert pairs(section) == []

    def test_p_values_are_adjusted_for_all_pairs(self) -> None:
        runs = [
            made_run(method, seed, made_accuracies(5, 10 * seed + shift))
            for shift, method in enumerate(("fedavg", "local", "fedprox"))
            for seed in (1, 2, 3)
        ]
        (section,) = sections(runs)
        found = pairs(section)
        least = min(found, key=lambda pair: pair.p)
        assert len(found) == 3
        assert least.p == pytest.approx(min(1, 3 * least.difference.over_seeds.p))


class TestTables:
    def test_figures_have_means_and_standard_errors_over_seeds(self) -> None:
        values = [0.5, 0.6, 0.8]
        runs = [made_run(seed=i, accuracies={("seen", "0"): value}) for i, value in enumerate(values)]
        (section,) = sections(runs)
        error = np.std(values, ddof=1) / 3**0.5
        figure = f"{100 * np.mean(values):.1f} ± {100 * error:.1f}"
        assert figures_table(section).rows[0][:5] == ["fedavg", "seen (1)", "3", "2", figure]

    def test_a_figure_that_is_not_a_number_is_shown_as_such(self) -> None:
        (section,) = sections([made_run(seed=1), made_run(seed=2, accuracies={("seen", "0"): float("nan")})])
        assert figures_table(section).rows[0][4] == "nan"
        assert notes(section) == ["fedavg, seed 2: accuracy, loss of seen clients is not a number."]

    def test_warnings_of_several_seeds_that_differ_in_numbers_are_one(self) -> None:
        runs = [made_run("fedavg", seed) for seed in (1, 2, 3)]
        for run, chance in zip(runs, ("0.1481 of 594", "0.21 of 670", "0.2 of 5"), strict=True):
            run.summary["warnings"] = [f"the accuracy is at chance: {chance} examples"]
        runs[1].summary["warnings"].append("it may have diverged")
        (section,) = sections(runs)
        assert notes(section) == [
            "fedavg, seeds 1-3: the accuracy is at chance: 0.1481 of 594 examples (numbers of seed 1).",
            "fedavg, seed 2: it may have diverged.",
        ]

    def test_clients_that_one_run_lacks_are_noted(self) -> None:
        """Its mean is that of the others, and may be flattering: a client whose model has diverged cannot be tested."""
        one, other = {("seen", "0"): 0.5, ("seen", "1"): 0.7}, {("seen", "1"): 0.7}
        (section,) = sections([made_run(accuracies=one), made_run("local", accuracies=other), made_run(seed=2)])
        assert "local, seed 1: 1 of 2 clients were not measured, and do not count." in notes(section)
        assert sum("not measured" in note for note in notes(section)) == 1

    def test_unfinished_and_foreign_folders_are_named(self, tmp_path: Path) -> None:
        done = RunFolder(tmp_path / "done", config(), "")
        done.create({})
        final = {"final": {}, "rounds": 0, "clients": 0, "bytes_down": 0, "bytes_up": 0, "seconds_per_round": 0.0}
        done.write_summary(final)
        half = RunFolder(tmp_path / "half", config(seed=2), "")
        half.create({})
        half.status("stopped", round=3)
        (tmp_path / "empty").mkdir()
        shown = write_report([done.path, half.path, tmp_path / "empty"], tmp_path / "report")
        assert "half has not completed (it stopped in round 3)" in shown.remarks[0]
        assert "empty is not the folder of a run" in shown.remarks[1]
        assert {*markdown(shown.tables[0]).splitlines(), *shown.remarks} <= {
            *(tmp_path / "report" / "report.md").read_text().splitlines()
        }
        with pytest.raises(RunError, match="half has not completed"):
            write_report([half.path], tmp_path / "report")

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path / "run", config(), "")
        run.create({})
        (run.path / "summary.json").write_text("{")
        with pytest.raises(RunError, match=r"summary.json is damaged"):
            load_run(run.path)


class TestPictures:
    def test_a_curve_is_the_mean_over_seeds_where_all_have_it(self) -> None:
        runs = [made_run(seed=1), made_run(seed=2, accuracies={("seen", "0"): 0.8})]
        runs[0].metrics.append({"round": 3, "bytes_down": 1, "bytes_up": 1, "seen": {"accuracy": 1.0}})  # type: ignore
        x, mean, error = curve(Pool("fedavg", tuple(runs)), reader("seen", "accuracy"), "round")
        assert (list(x), list(mean)) == ([2], pytest.approx([70]))
        assert list(error) == pytest.approx([10])  # s/√n of 60 and 80

    def test_every_method_has_a_colour_and_an_entry(self) -> None:
        (section,) = sections([made_run(seed=1), made_run("local"), made_run(seed=2)])
        figure = plot_pools(section.pools)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fedavg", "local"]
        assert len({to_hex(line.get_color()) for line in figure.axes[0].lines}) == 2

    def test_a_notebook_shows_figures_without_pyplot(self) -> None:
        assert plot_pools(sections([made_run()])[0].pools)._repr_png_().startswith(b"\x89PNG")


def test_simulated_time_is_drawn_where_runs_have_it() -> None:
    """One of the two methods has no virtual clock, and no curve over its time."""
    timed = made_run("fedprox", **{"fleet.speed": 5.0})
    timed = replace(timed, metrics=[{**line, "simulated_seconds": 90.0} for line in timed.metrics])
    (section,) = sections([made_run(), timed])
    assert places(sections([made_run()])[0].pools) == ["round", "traffic", "seconds"]
    assert places(section.pools) == ["round", "traffic", "seconds", "simulated"]
    points = {pool.label: curve(pool, reader("seen", "accuracy"), "simulated")[0] for pool in section.pools}
    assert {len(x) for x in points.values()} == {0, 1}
    assert max(map(tuple, points.values())) == (1.5,)
    assert [axes.get_xlabel() for axes in plot_pools(section.pools).axes] == [
        "round", "MB sent, both ways, all clients", "minutes of simulated time", "final accuracy (%)",
    ]  # fmt: skip
