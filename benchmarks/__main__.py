"""``python -m benchmarks``: measure every budget of docs/architecture.md, print a table, write docs/results/speed.md.

The machine must be otherwise idle. Speeds are ratios of measurements that alternate in one run, because speed differs
between machines and over time on one machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import torch

from benchmarks import (
    adapters,
    enrolled,
    exchange,
    fleet,
    hospitals,
    hypergradient,
    natural,
    operators,
    pages,
    pfl_research,
    plain,
    plain_methods,
    plain_pefll,
    private,
    regulariser,
    secagg,
    suite,
    tables,
)
from benchmarks import board as every_method
from benchmarks import robust as rules
from benchmarks import statistics as of_tables
from benchmarks import trees as of_trees
from benchmarks import vectorised as at_once
from benchmarks.peers import measuring as peers
from benchmarks.peers import packages
from benchmarks.speed_table import Row, Table
from benchmarks.task import COHORT, KEYS

PEERS = "peers"
"""The section of other packages, whose table stands by itself: it has other columns, and no bounds."""
TARGET = Path(__file__).resolve().parent.parent / "docs" / "results" / "speed.md"
ROUNDS, PLAIN_ROUNDS, REPEATS = 10, 4, 4


def against_plain(model: str, bound: float, workers: int) -> list[Row]:
    """Compare the seconds per round with a plain PyTorch loop, and with pfl-research if it is installed."""
    ours, loops, theirs = [], [], []
    for _ in range(REPEATS):
        loops.append(plain.measure(model, COHORT, PLAIN_ROUNDS, workers))
        ours.append(suite.seconds_per_round(model, ROUNDS, workers))
        loops.append(plain.measure(model, COHORT, PLAIN_ROUNDS, workers))
        if importlib.util.find_spec("pfl") is not None:
            theirs.append(pfl_research.measure(model, ROUNDS, workers))
    own, loop = float(np.median(ours)), float(np.median(loops))
    details = f"{own:.2f} s per round against {loop:.2f} s, {workers} processes each"
    rows = [Row(f"FedAvg, `{model}`: time ÷ plain PyTorch loop", own / loop, bound, "", details)]
    if model == "lenet":
        most, _ = suite.peak({**KEYS, "model": model, "rounds": 4, "evaluate-clients": 2}, workers)
        rows.append(Row(f"memory of FedAvg, `{model}`", most, 1.0, " GB", "all processes of the run"))
    if theirs:
        their = float(np.median(theirs))
        details = f"{own:.2f} s per round against {their:.2f} s, {workers} processes each"
        rows.append(Row(f"FedAvg, `{model}`: time ÷ pfl-research", own / their, 0.9, "", details))
    return rows


def messages(workers: int) -> list[Row]:
    """Measure the time of exchanges."""
    empty, light, stock = (exchange.measure(kind, workers) for kind in ("nothing", "histogram", "stock"))
    own = {kind: exchange.with_workers(kind, workers) for kind in ("nothing", "histogram")}
    step = suite.light_seconds(workers)
    return [
        Row("1,000 class histograms, one exchange, engine `process`", own["histogram"], 0.02, " s", "median of twenty"),
        Row("the same, nothing returned, 120,000 parameters sent", own["nothing"], 0.02, " s", "median of twenty"),
        Row("FedAvg, 1,000 of 10,000 clients, one step each: a round", step, 0.3, " s", "MNIST, `linear`"),
        Row(
            "empty exchange, 120,000 parameters, cohort of 1,000, Flower's simulation",
            empty,
            0.1,
            " s",
            "of which Flower looks for messages every 0.1 s: half that on average",
        ),
        Row("1,000 class histograms, one exchange, Flower's simulation", light, 0.3, " s", "hosted"),
        Row("the same, one Flower message per client: times slower", stock / light, -50, "×", f"{stock:.1f} s"),
    ]


def start(workers: int) -> Iterator[Row]:
    """Measure what a person waits for on `digits`: medians of five after a warm-up."""
    compare = ("compare", "fedavg", "fedprox", "local")
    with tempfile.TemporaryDirectory() as cache:
        measures: list[tuple[str, float, Callable[[], float]]] = [
            ("`florilegium run` to the first evaluation", 3, lambda: suite.startup(workers, "process", cache)),
            ("the same with `--engine ray`", 12, lambda: suite.startup(workers, "ray", cache)),
            ("`florilegium run` to the first evaluation, nothing cached", 6, lambda: suite.startup(workers, "process")),
            ("`florilegium run`, all 30 rounds", 6, lambda: suite.command_seconds("run", workers=workers)),
            (f"`florilegium {' '.join(compare)}`", 15, lambda: suite.command_seconds(*compare, workers=workers)),
        ]
        for what, bound, measure in measures:
            measure()
            seconds = sorted(measure() for _ in range(5))
            details = f"`digits`, median of five, {seconds[0]:.1f} to {seconds[-1]:.1f} s"
            yield Row(what, seconds[2], bound, " s", details)
    ours, floor = suite.startup_and_floor(workers)
    details = f"a second run: {ours:.2f} s against {floor:.2f} s, medians of seven in turn"
    yield Row(
        "`florilegium run` to the first evaluation ÷ `import torch` and one round", ours / floor, 1.15, "", details
    )


def memory(workers: int) -> list[Row]:
    """Measure the memory of a run with 10,000 clients that each keep a model."""
    peak, seconds = suite.memory(workers)
    details = f"all processes; {suite.MEMORY_CLIENTS:,} clients train and store a model in {seconds:.0f} s"
    return [Row(f"memory, {suite.MEMORY_CLIENTS:,} clients with a model each", peak, 1.2, " GB", details)]


def evaluation(workers: int) -> list[Row]:
    """Measure the cost of evaluating all clients, relative to the forward passes alone."""
    return [
        Row(f"evaluating 100 clients ÷ forward passes, `{model}`", suite.evaluation_ratio(model), 1.3, "", "one worker")
        for model in ("lenet", "cnn64")
    ]


def ppfe(workers: int) -> list[Row]:
    """Measure the cost of PPFE's stages relative to FedAvg."""
    ours, theirs = suite.ppfe_costs(workers)
    trainings = [full * 100 + (160 - full) * 10 for full in (4, 1)]  # 10 clients a round, all 100 in `full` rounds
    each = ours[0] / theirs[0] * trainings[1] / trainings[0]
    alone = (
        f"160 rounds, four of PPFE's and one of FedAvg's with all clients: {ours[0]:.0f} s for {trainings[0]:,} "
        f"trainings of clients against {theirs[0]:.0f} s for {trainings[1]:,}, {each:.2f} for each; from ten rounds of "
        "every stage"
    )
    details = (
        f"160 rounds and the final evaluation: {ours[0]:.0f} + {ours[1]:.0f} s against {theirs[0]:.0f} + "
        f"{theirs[1]:.0f} s of FedAvg+FT, which tunes all clients; four rounds with all clients against one"
    )
    return [
        Row("recipe `ppfe-cifar10-s2`, training alone: time ÷ FedAvg's", ours[0] / theirs[0], 1.15, "", alone),
        Row("the same, whole runs: time ÷ that of FedAvg+FT", sum(ours) / sum(theirs), 1.15, "", details),
    ]


def pefll(workers: int) -> list[Row]:
    """Measure the cost of a PeFLL round of three exchanges, relative to its computation in plain PyTorch."""
    ours, bare = [], []
    for _ in range(3):
        bare.append(plain_pefll.measure(20, workers))
        ours.append(suite.pefll_seconds(40, workers))
    own, (clients, server) = float(np.median(ours)), np.median(bare, axis=0).tolist()
    details = f"{own:.2f} s per round against {clients:.2f} s of the clients and {server:.2f} s of the server"
    what = "recipe `pefll-cifar10-n100`: a round ÷ its computation in plain PyTorch"
    return [Row(what, own / (clients + server), 1.5, "", details)]


def kmeans(workers: int) -> list[Row]:
    """Measure the time of private clustering, without start-up."""
    rows = []
    for recipe, bound in (("feddp-kmeans-mixture", 5), ("feddp-kmeans-clients", 8), ("feddp-kmeans-clients:n5000", 20)):
        training, evaluation = suite.kmeans_seconds(recipe, workers)
        details = f"{training:.1f} s of clustering and {evaluation:.1f} s of evaluation"
        rows.append(Row(f"recipe `{recipe}` after start-up", training + evaluation, bound, " s", details))
    return rows


def mdm(workers: int) -> list[Row]:
    """Measure the time of fitting a mixture of three components to 1,000 clients a round, without start-up."""
    seconds, rounds = suite.mdm_seconds(workers)
    details = f"{rounds} rounds, {1000 * seconds / rounds:.0f} ms each"
    return [Row("recipe `mdm` after start-up", seconds, 60, " s", details)]


def flowdup(workers: int) -> list[Row]:
    """Measure the time per batch and the memory of FLowDUP's random-subspace operators."""
    rows = []
    for model, bound in (("cnn", 3), ("resnet18", 150)):
        (ours, size), (other, theirs) = (operators.expansion_cost(kind, model) for kind in ("kronecker", "fastfood"))
        case = f"for `{model}`, k = 10,000"
        rows.append(Row(f"`kronecker` Pv and Pᵀg {case}, one core", ours, bound, " ms", f"`fastfood` {other:.1f} ms"))
        rows.append(
            Row(f"memory of the larger operator {case}", max(size, theirs), 100, " MB", f"`kronecker` {size:.1f} MB")
        )
    return rows


def fedgtst(workers: int) -> list[Row]:
    """Measure the cost of FedGTST's regulariser relative to plain training."""
    regularised, plain_epoch, products = regulariser.epoch_costs("lenet")
    details = (
        f"{1000 * regularised:.0f} ms against {1000 * plain_epoch:.0f} ms, {regulariser.EXAMPLES} examples, one core; "
        f"multiplications {products:.2f}"
    )
    return [
        Row("FedGTST, `lenet`: a regularised local epoch ÷ a plain one", regularised / plain_epoch, 2.6, "", details)
    ]


def fedl2p(workers: int) -> list[Row]:
    """Measure the time of FedL2P's implicit differentiation relative to first-order derivatives, and its memory."""
    ift, first_order, products = hypergradient.costs("cnn-bn")
    details = f"{1000 * ift:.0f} ms against {1000 * first_order:.0f} ms, batches of {hypergradient.BATCH}, one core; "
    details += f"multiplications {products:.2f}"
    meta, tuning = (hypergradient.memory(kind, "cnn-bn") for kind in ("ift", "plain"))
    size = f"{meta / 1e6:.0f} MB against {tuning / 1e6:.0f} MB, batches of {hypergradient.MEMORY_BATCH}"
    return [
        Row(
            "FedL2P, `cnn-bn`: a hypergradient ÷ FOMAML+'s, each with the last step", ift / first_order, 4, "", details
        ),
        Row("memory of a meta-update ÷ that of fine-tuning", meta / tuning, 3, "", size),
    ]


def privacy(workers: int) -> list[Row]:
    """Measure the time cost of client-level privacy and of DP-SGD."""
    private_round, plain_round = private.client_level(2 * ROUNDS, workers)
    details = f"{private_round:.3f} s per round against {plain_round:.3f} s"
    rows = [Row("client-level privacy, `lenet`: a round ÷ one without", private_round / plain_round, 1.03, "", details)]
    for model, bound in (("lenet", 0.55), ("mlp", 0.25)):
        seconds = private.dp_sgd(model)
        own, theirs, plain = (seconds[kind] for kind in ("suite", "opacus", "plain"))
        details = (
            f"{own:.2f} s against {theirs:.2f} s, batches of {private.BATCH}; without privacy {plain / theirs:.2f}"
        )
        rows.append(Row(f"DP-SGD, `{model}`: an epoch ÷ bare Opacus'", own / theirs, bound, "", details))
    seconds = private.of_many(64)
    own, theirs, plain = (seconds[kind] for kind in ("suite", "opacus", "plain"))
    details = (
        f"{own:.2f} s against {theirs:.2f} s, 60 examples each, batches of 20; without privacy {plain / theirs:.2f}"
    )
    return [*rows, Row("the same, 64 small clients with an `mlp` each", own / theirs, 0.25, "", details)]


def secure(workers: int) -> list[Row]:
    """Measure the bytes and the processor time of secure aggregation, of a device and of the server."""
    rows = []
    for entries, bound, seconds in zip(secagg.ENTRIES, (1.3, 1.6), (0.5, 20), strict=True):
        for parties in secagg.PARTIES:
            cost = secagg.measure(parties, entries)
            case = f"secure sum of {entries:,} entries, {parties:,} parties"
            details = f"{cost.bits} bits, {cost.neighbours} neighbours; the server {cost.server:.2f} s"
            rows.append(Row(f"{case}: processor time of a device", cost.device, seconds, " s", details))
            rows.append(Row(f"{case}: bytes ÷ plain", cost.traffic, bound, "", details))
    return rows


def vectorised(workers: int) -> list[Row]:
    """Measure how many times faster a worker is with several clients at once, on one core, and on a GPU if any."""
    rows = []
    for case in (*at_once.ON_CPU, *(at_once.on_gpu() if torch.cuda.is_available() else ())):
        seconds = at_once.measure(case)
        ratios = {size: seconds[1] / value for size, value in seconds.items() if size > 1}
        details = f"{case.cohort} clients one at a time: {1000 * seconds[1]:.0f} ms; " + ", ".join(
            f"{size} at once: {ratio:.2f}×" for size, ratio in ratios.items()
        )
        rows.append(Row(f"{case.what}: one at a time ÷ together", max(ratios.values()), -case.bound, "×", details))
    return rows


def small(workers: int) -> list[Row]:
    """Measure a federated training of a dense layer on four small clients beside a plain loop, on one core."""
    seconds = hospitals.measure()
    ratio = seconds["together"] / seconds["plain"]
    details = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    return [Row("15 rounds of 100 steps, four hospitals: time ÷ a plain loop for each", ratio, 0.5, "", details)]


def listing(workers: int) -> list[Row]:
    """Measure the list of runs in a browser, by a server that has just been started."""
    first, later, waited = pages.measure()
    what = f"`florilegium ui`: list of {pages.RUNS} runs of {pages.CLIENTS} clients, processor time of a new server"
    details = f"{pages.ROUNDS} rounds; {waited:.2f} s until the page is there; {later:.2f} s when the runs are known"
    return [Row(what, first, 1.0, " s", details)]


def adapted(workers: int) -> list[Row]:
    """Measure LoRA on a transformer of MiniLM's size beside bare transformers and peft, on one core."""
    found, run = adapters.measure(), adapters.whole()
    times = ", ".join(f"{name} {found[name]:.2f} s" for name in ("ours", "bucket", "bare"))
    private = ", ".join(f"{name} {found[name]:.2f} s" for name in ("private", "private parts", "ours"))
    needs = run["one"] - run["loaded"]
    memory = ", ".join(f"{name} {run[name] / 1e6:.0f} MB" for name in ("two", "one", "loaded"))
    return [
        Row("LoRA, a client's epoch of 256 texts: time ÷ bare transformers and peft", found["ours"] / found["bare"],
            1.05, "", times),
        Row("the same, batches by length", found["bucket"] / found["bare"], 0.8, "", times),
        Row("the same with private texts, batches of 128 in parts of 16 by length ÷ whole batches",
            found["private parts"] / found["private"], 0.6, "", private),
        Row("the same: bytes of an update ÷ adapters and head", found["sent"] / found["trained"], 1.02, "",
            f"{found['sent'] / 1e6:.3f} MB"),
        Row("100 clients, two workers: memory less a worker's ÷ one loaded base", (run["two"] - needs) / run["loaded"],
            1.15, "", f"{memory}; a worker needs {needs / 1e6:.0f} MB"),
        Row("first round of a run ÷ loading the base and an epoch in one process", run["first"] / run["bare"], 1.5, "",
            f"{run['first']:.1f} s against {run['bare']:.1f} s"),
    ]  # fmt: skip


def large_tables(workers: int) -> list[Row]:
    """Measure reading and encoding a CSV table of 1 M rows and 40 columns, beside pandas and scikit-learn."""
    found = tables.measure()
    own, other = found["ours"], found["theirs"]
    times = f"{own['seconds']:.1f} s against {other['seconds']:.1f} s, a process each, median of {tables.REPEATS}"
    ours, theirs, array = (size / 1e9 for size in (own["peak"], other["peak"], own["array"]))
    memory = f"{ours:.2f} GB of {array:.2f} GB; pandas and scikit-learn {theirs:.2f} GB"
    what = "CSV of 1 M rows × 40 columns, read and encoded: time ÷ pandas and scikit-learn"
    return [
        Row(what, own["seconds"] / other["seconds"], 1.5, "", times),
        Row("the same: peak memory of the process ÷ encoded array", ours / array, 2, "", memory),
    ]


def board(workers: int, methods: Sequence[str] = ()) -> Iterator[Row]:
    """Measure a round of every method, or of ``methods``, relative to its arithmetic in a plain loop, on one core."""
    for method in methods or every_method.methods():
        ours, loop = every_method.measure(method)
        details = f"{1000 * ours:.0f} ms against {1000 * loop:.0f} ms, five clients, one epoch of 400 images"
        kind = "a loop written by hand" if method in plain_methods.ROUNDS else "its passes in a plain loop"
        network = every_method.OWN.get(method, {}).get("model", every_method.KEYS["model"])
        yield Row(f"`{method}`, `{network}`: a round ÷ {kind}", ours / loop, 1.15, "", details)


def fleets(workers: int) -> list[Row]:
    """Measure what the virtual clock costs in a round of light clients, and whether memory grows with the fleet."""
    clock, light = fleet.clock_seconds(), suite.light_seconds(workers)
    small, large = (fleet.held_bytes(clients) for clients in (fleet.FLEET // 10, fleet.FLEET))
    return [
        Row("virtual clock: share of a round of 1,000 clients, one step each", 100 * clock / light, 5, " %",
            f"{1000 * clock:.0f} ms for 1,000 of 100,000 clients, diurnal; a round takes {light:.2f} s"),
        Row("buffered rounds, 1,000 busy clients: memory with 100,000 ÷ with 10,000", large / small, 1.1, "",
            f"{large / 1e6:.1f} MB held by clock and buffer"),
    ]  # fmt: skip


def statistics_of_tables(workers: int) -> list[Row]:
    """Statistics of many clients beside the same analysis of all rows in one process."""
    ours, pooled, rounds = of_tables.logistic()
    described, pandas = of_tables.describing()
    grown, boosted = of_trees.growing()
    return [
        Row("`glm`, logistic, 1,000,000 × 20, 10 clients ÷ pooled Newton steps", ours / pooled, 1.5, "",
            f"{ours:.2f} s, {pooled:.2f} s for {rounds} steps"),
        Row("`describe`, 1,000,000 × 40, 100 clients ÷ pandas and histograms", described / pandas, 2.0, "",
            f"{described:.2f} s, {pandas:.2f} s"),
        Row("`trees`, 200,000 × 20, 10 clients, 20 trees ÷ pooled XGBoost", grown / boosted, 5.0, "",
            f"{grown:.2f} s, {boosted:.2f} s"),
    ]  # fmt: skip


def robust(workers: int) -> list[Row]:
    """Measure robust rules on 100 updates beside Flower's functions, and a plain mean."""
    rows = []
    for size, arrays in rules.SIZES.items():
        if not rules.fits(arrays):
            print(f"robust: not enough memory for {rules.UPDATES} updates of {size} entries")
            continue
        seconds, added, updates = rules.measure(arrays, rules.REPEATS[size])
        mean, what = seconds["plain mean"], f"{rules.UPDATES} updates of {size} entries"
        for name in (name for name in seconds if f"Flower's {name}" in seconds):
            ours, theirs = seconds[name], seconds[f"Flower's {name}"]
            details = f"{1000 * ours:.0f} ms against {1000 * theirs:.0f} ms"
            rows.append(Row(f"`{name}`, {what} ÷ Flower's function", ours / theirs, 0.8, "", details))
        for name in rules.LINEAR:
            details = f"{1000 * seconds[name]:.0f} ms against {1000 * mean:.0f} ms"
            rows.append(Row(f"`{name}`, {what} ÷ a plain mean", seconds[name] / mean, 3, "", details))
        worst = max(added, key=lambda name: added[name])
        rows.append(Row(f"robust rules, {what}: memory ÷ the updates", 1 + added[worst] / updates, 1.3, "",
                        f"`{worst}`, the most of all"))  # fmt: skip
    return rows


def natural_clients(workers: int) -> list[Row]:
    """Measure time and memory until the first round of a run with very many natural clients ends."""
    rows = []
    for count, seconds, size in ((100_000, 20, 1.2), (1_000_000, 120, 4)):
        taken, worked, peak = natural.first_round(count, workers)
        what, details = f"{count:,} natural clients of 4 rows each", f"{taken:.0f} s by the clock; nothing cached"
        rows.append(Row(f"{what}: processor time of a run of one round", worked, seconds, " s", details))
        rows.append(Row(f"{what}: memory", peak, size, " GB", "all processes"))
    return rows


def enrolled_clients(workers: int) -> Iterator[Row]:
    """Measure rounds of 10,000 of a million clients beside rounds of 1,000 clients: processor time, memory, files."""
    few, many, cohort = enrolled.FEW, enrolled.MANY, enrolled.COHORT
    with tempfile.TemporaryDirectory() as folder:
        for method in ("fedavg", "local"):
            found = enrolled.measure(method, max(2, workers), Path(folder))
            what = f"`{method}`, {cohort:,} of {many:,} clients"
            details = f"processor time: {found.many:.0f} µs against {found.few:.0f} µs with {few:,} clients"
            yield Row(f"{what}: a round per client ÷ with {few:,}", found.ratio, 1.2, "", details)
            yield Row(
                f"{what}: memory of the server",
                found.server,
                3,
                " GB",
                "after a round; what processes share counts once",
            )
            yield Row(f"{what}: memory of a worker", found.worker, 1, " GB", "the largest of the workers")
            if found.entries:
                details = f"inodes, when {found.clients:,} clients have trained"
                yield Row(f"{what}: files and folders for each state", found.entries, 2, "", details)


SECTIONS: dict[str, Callable[[int], Iterable[Row]]] = {
    "lenet": lambda workers: against_plain("lenet", 0.80, workers),
    "cnn64": lambda workers: against_plain("cnn64", 0.63, workers),
    "messages": messages,
    "fleet": fleets,
    "start": start,
    "memory": memory,
    "natural": natural_clients,
    "enrolled": enrolled_clients,
    "evaluation": evaluation,
    "ppfe": ppfe,
    "pefll": pefll,
    "kmeans": kmeans,
    "mdm": mdm,
    "flowdup": flowdup,
    "fedgtst": fedgtst,
    "fedl2p": fedl2p,
    "privacy": privacy,
    "secagg": secure,
    "robust": robust,
    "statistics": statistics_of_tables,
    "vectorised": vectorised,
    "tables": large_tables,
    "hospitals": small,
    "ui": listing,
    "adapters": adapted,
    "board": board,
}


def main() -> None:
    """Measure the named sections (default: all) and write the table; lines of other sections are kept."""
    every = (*SECTIONS, PEERS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"sections to measure: {', '.join(every)}; default: all")
    parser.add_argument("--workers", type=int, default=psutil.cpu_count())
    parser.add_argument("--passes", type=int, default=peers.PASSES, help=f"passes of section {PEERS}")
    parser.add_argument("--rounds", type=int, default=peers.ROUNDS, help=f"rounds of its runs, after {peers.WARM}")
    parser.add_argument("--check", action="store_true", help="print its lines, but do not write them")
    parser.add_argument("--methods", nargs="+", default=[], help=f"those of sections board and {PEERS}; default: all")
    scripts = sorted({peer.module for peer in packages.PEERS})
    help_of_peers = f"scripts of section {PEERS} to run; rows of others are kept; default: all"
    parser.add_argument("--peers", nargs="+", default=[], choices=scripts, help=help_of_peers)
    arguments = parser.parse_args()
    if unknown := {*arguments.sections} - {*every}:
        parser.error(f"unknown sections: {', '.join(unknown)}")
    if unknown := {*arguments.methods} - {*packages.METHODS, *every_method.methods()}:
        parser.error(f"unknown methods: {', '.join(unknown)}")
    table = Table(TARGET, SECTIONS, writes=not arguments.check)
    sections = {**SECTIONS, "board": lambda workers: board(workers, arguments.methods)}
    for name in arguments.sections or every:
        print(f"measuring {name} …", flush=True)
        if name in SECTIONS:
            table.measure(name, sections[name](arguments.workers), arguments.workers, whole=not arguments.methods)
            continue
        methods = arguments.methods or [*packages.METHODS]
        rows = peers.rows(arguments.workers, arguments.passes, arguments.rounds, methods, arguments.peers)
        lines = peers.lines(rows, arguments.workers)
        print("\n".join(lines), flush=True)
        if not arguments.check:
            peers.write(lines, whole=not arguments.peers)
            table.write()
    if not arguments.check:
        print(f"written to {TARGET}")


if __name__ == "__main__":
    main()
