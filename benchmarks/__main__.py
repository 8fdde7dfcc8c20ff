"""``python -m benchmarks``: measure every budget of docs/architecture.md, print a table, write docs/results/speed.md.

The machine must be otherwise idle. Speeds are ratios of measurements that alternate in one run, because speed differs
between machines and over time on one machine.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from benchmarks import (
    adapters,
    exchange,
    fleet,
    hospitals,
    hypergradient,
    operators,
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
from benchmarks.task import COHORT, KEYS
from florilegium.common.files import write_text

TARGET = Path(__file__).resolve().parent.parent / "docs" / "results" / "speed.md"
ROUNDS, PLAIN_ROUNDS, REPEATS = 10, 4, 4


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, the value, its bound (negative: "at least") and unit, and details."""

    what: str
    value: float
    bound: float
    unit: str
    details: str

    @property
    def met(self) -> bool:
        """Whether the value meets its bound; a negative bound means "at least" its absolute value."""
        return self.value <= self.bound if self.bound > 0 else self.value >= -self.bound

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row as text."""
        sign = "≤" if self.bound > 0 else "≥"
        measured, bound = f"{self.value:.2f}{self.unit}", f"{sign} {abs(self.bound):g}{self.unit}"
        return self.what, measured, bound, "yes" if self.met else "NO", self.details


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


def start(workers: int) -> list[Row]:
    """Measure what a person waits for on `digits`: medians of five after a warm-up."""
    compare = ("compare", "fedavg", "fedprox", "local")
    measures: list[tuple[str, float, Callable[[], float]]] = [
        ("`florilegium run` to the first evaluation", 3, lambda: suite.startup(workers, "process")),
        ("the same with `--engine ray`", 12, lambda: suite.startup(workers, "ray")),
        ("`florilegium run`, all 30 rounds", 6, lambda: suite.command_seconds("run", workers=workers)),
        (f"`florilegium {' '.join(compare)}`", 15, lambda: suite.command_seconds(*compare, workers=workers)),
    ]
    rows = []
    for what, bound, measure in measures:
        measure()
        seconds = sorted(measure() for _ in range(5))
        details = f"`digits`, median of five, {seconds[0]:.1f} to {seconds[-1]:.1f} s"
        rows.append(Row(what, seconds[2], bound, " s", details))
    return rows


def memory(workers: int) -> list[Row]:
    """Measure the memory of a run with 10,000 clients that each keep a model."""
    peak, seconds = suite.memory(workers)
    details = f"all processes; {suite.MEMORY_CLIENTS:,} clients train and store a model in {seconds:.0f} s"
    return [Row(f"memory, {suite.MEMORY_CLIENTS:,} clients with a model each", peak, 4, " GB", details)]


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
    regularised, plain_epoch = regulariser.epoch_costs("lenet")
    details = (
        f"{1000 * regularised:.0f} ms against {1000 * plain_epoch:.0f} ms, {regulariser.EXAMPLES} examples, one core"
    )
    return [
        Row("FedGTST, `lenet`: a regularised local epoch ÷ a plain one", regularised / plain_epoch, 2.6, "", details)
    ]


def fedl2p(workers: int) -> list[Row]:
    """Measure the time of FedL2P's implicit differentiation relative to first-order derivatives, and its memory."""
    ift, first_order = hypergradient.costs("cnn-bn")
    details = f"{1000 * ift:.0f} ms against {1000 * first_order:.0f} ms, batches of {hypergradient.BATCH}, one core"
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
    seconds = private.dp_sgd("lenet")
    fastest = min(("hooks", "ghost"), key=seconds.__getitem__)
    epoch = (
        f"hooks {seconds['hooks']:.2f} s, ghost {seconds['ghost']:.2f} s, Opacus {seconds['opacus']:.2f} s, one core"
    )
    return [
        Row("client-level privacy, `lenet`: a round ÷ one without", private_round / plain_round, 1.03, "", details),
        Row(
            f"DP-SGD, `lenet`, `{fastest}`: an epoch ÷ bare Opacus'", seconds[fastest] / seconds["opacus"], 1.1, "",
            f"batches of {private.BATCH}: {epoch}",
        ),
    ]  # fmt: skip


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


def adapted(workers: int) -> list[Row]:
    """Measure LoRA on a transformer of MiniLM's size beside bare transformers and peft, on one core."""
    found, run = adapters.measure(), adapters.whole()
    times = ", ".join(f"{name} {found[name]:.2f} s" for name in ("ours", "bucket", "bare"))
    needs = run["one"] - run["loaded"]
    memory = ", ".join(f"{name} {run[name] / 1e6:.0f} MB" for name in ("two", "one", "loaded"))
    return [
        Row("LoRA, a client's epoch of 256 texts: time ÷ bare transformers and peft", found["ours"] / found["bare"],
            1.05, "", times),
        Row("the same, batches by length", found["bucket"] / found["bare"], 0.8, "", times),
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


def board(workers: int) -> list[Row]:
    """Measure a round of every method relative to its own arithmetic in a plain loop, on one core."""
    rows = []
    for method in every_method.methods():
        ours, loop = every_method.measure(method)
        details = f"{1000 * ours:.0f} ms against {1000 * loop:.0f} ms, five clients, one epoch of 400 images"
        kind = "a loop written by hand" if method in plain_methods.ROUNDS else "its passes in a plain loop"
        network = every_method.OWN.get(method, {}).get("model", every_method.KEYS["model"])
        rows.append(Row(f"`{method}`, `{network}`: a round ÷ {kind}", ours / loop, 1.3, "", details))
    return rows


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
        seconds, added, updates = rules.measure(arrays)
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


SECTIONS: dict[str, Callable[[int], list[Row]]] = {
    "lenet": lambda workers: against_plain("lenet", 0.80, workers),
    "cnn64": lambda workers: against_plain("cnn64", 0.63, workers),
    "messages": messages,
    "fleet": fleets,
    "start": start,
    "memory": memory,
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
    "adapters": adapted,
    "board": board,
}


def machine(workers: int) -> str:
    """Return the processor, the number of workers, and the versions of Flower and PyTorch, in a few words."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = " ".join((named[0] if named else platform.processor()).split()[:2])
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("flwr", "torch"))
    return f"{model}, {psutil.cpu_count()} cores, {workers} workers; {versions}"


def earlier() -> dict[str, list[str]]:
    """Return the lines of the existing table by section."""
    text = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        section = line.removeprefix("| ").partition(" |")[0]
        if section in SECTIONS:
            found.setdefault(section, []).append(line)
    return found


def main() -> None:
    """Measure the named sections (default: all) and write the table; lines of other sections are kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"sections to measure: {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--workers", type=int, default=psutil.cpu_count())
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"unknown sections: {', '.join(unknown)}")
    for name in arguments.sections or SECTIONS:
        print(f"measuring {name} …", flush=True)
        lines = []
        for row in SECTIONS[name](arguments.workers):
            when = f"{datetime.date.today()}; {machine(arguments.workers)}"
            lines.append("| " + " | ".join((name, *row.cells(), when)) + " |")
            print(lines[-1], flush=True)
        table = {**earlier(), name: lines}
        whole = [line for section in SECTIONS for line in table.get(section, [])]
        header = f"| section | what | measured | bound | met | details | measured on |\n|{7 * '---|'}\n"
        title = "# Speed\n\n`python -m benchmarks [SECTION …]`\n\n"
        write_text(TARGET, title + header + "\n".join(whole) + "\n" + NOTES)
    print(f"written to {TARGET}")


NOTES = """
The task: CIFAR-10, 100 clients with 150 images of 2 classes each, 10 a round, 5 local epochs of batches of 10, SGD with
momentum; medians of rounds after the first four. The plain loop is what one writes in PyTorch (convolution, ReLU,
pooling; default memory layout; `torch.optim.SGD`), as many processes as workers, and alternates with our runs.
pfl-research runs the same task with as many processes (`torchrun`).

PPFE's stages end with a round of all clients, which is more than the bound allows: 1,960 trainings of clients are 1.16
times FedAvg's 1,690. A single training costs 1.04 times FedAvg's. A whole run meets the bound because FedAvg+FT
fine-tunes every client at the end, and PPFE none.

Rows up to 2026-11-25 were measured with the engine `ray`, the only one with worker processes at that time. Start-up
with both engines, and when Ray is worth it: [start.md](start.md).

Section `vectorised`: one worker on one core, a message to all clients, which have 14 training and 4 test examples each
([more](../vectorised.md)). The evaluation's bound is missed because most of a small client's test is not computation.
LG-FedAvg's is missed because a third of its time goes into clients' state files, which are read and written one by one;
they are flushed while other clients work ([measured](../vectorised.md#state-on-disk)).

Section `robust`: 100 updates, a fifth of them attackers, on a core while the machine did other work; all times
alternate. Flower's Bulyan is measured without its selection, which is not the paper's; ours is whole. The rule
`geometric-median` computes all inner products, whose number is the square of that of the updates; its steps then cost
nothing.

Section `hospitals` was measured while the machine did other work; its three times alternate.

Section `board`: five clients with 400 images each train for an epoch, on one core, while nothing else ran. The plain
loop repeats the method's calls of modules, each with its backward pass and a step of SGD; logits are given a
cross-entropy loss. What else a method computes outside of modules is not in the loop. Seven methods compute much
there: APPLE mixes models in every step, FedAMP, FedFomo and FedALA weigh them, FedDyn corrects gradients,
FedDistill sums logits by class, HyperFedZero makes a classifier for each input. Their loops are written by hand
(`benchmarks/plain_methods.py`). The rows above the bound are of methods for which this was not done: FLowDUP and
LD-FedAvg project a vector to a network, FedGTST and FedTTA need second derivatives, PPFE weighs examples, PeFLL
describes clients. Single rows vary by a tenth from pass to pass.

Section `fleet` was measured while the machine did other work, which makes both of its times several times longer. It
takes about 6 ms of CPU time to draw 1,000 of 100,000 diurnal clients and to foresee when they will reply.

## Beside other packages

The same task with LeNet, measured on 2026-11-25 on a nearly idle machine of two cores (AMD EPYC; flwr 1.42, torch
2.15), one package after the other, second and third pass. Memory is the proportional set size of all processes.

| what | s a round | CPU-s a round | s to the first round's end | GB |
|---|---|---|---|---|
| two workers forked from one process (a prototype of today's engine `process`) | 0.69–0.71 | 1.22 | 3.1 | 0.93 |
| Florilegium, engine `ray`, two workers | 0.71–0.84 | 1.18–1.36 | 12.6–14.5 | 2.63 |
| plain PyTorch loop, two processes | 0.90–0.96 | 1.56–1.76 | 7 | 1.62 |
| pfl-research 0.6, two processes (`torchrun`) | 0.80–0.86 | – | 12.5 | 1.72 |
| stock Flower, one thread a worker | 1.11 | – | 19.0 | 2.63 |
| PFLlib, one process, without its evaluation | 1.80 | 1.74 | 20.0 | 1.2 |
| FL-bench, one process, without and with its evaluation | 2.00, 2.69 | 2.0, 2.7 | 12.7, 15.8 | 3.0 |
| pfl-research, one process | 1.63 | 3.26 | 9.6 | 0.9 |
| FedJAX, one process | 5.8 | 7.5 | 8.5 | 0.5 |

On 2026-11-27, with the machine idle, engine `process` took 0.58 s a round with two workers, the plain loop 0.81 s and
pfl-research 0.89 s with two processes (`python -m benchmarks lenet`). Memory was 0.83 GB, and the
first round ended 2.1 s after the command, as a script saw in `status.json` (the second and third of three runs).

## On a GPU

LeNet on 15,000 random images (a function that returns arrays as `dataset`, default partition), 100 clients, 10 a round,
5 epochs of batches of 10, on one NVIDIA H200 with 16 CPU cores (torch 2.11), 2026-11-26: `fl.run(device=…, workers=…)`.
The table has the lowest and highest seconds of rounds 2 to 6 of one run each.

| workers | on the GPU | on the CPU |
|---|---|---|
| 1 | 1.41–1.61 | 1.74–3.10 |
| 4 | 0.41–0.47 | 0.80–0.95 |
| 12 | 0.25–0.29 | 0.37–0.46 |

Beside pfl-research on the same GPU, and with many clients at once: [gpu.md](../gpu.md#measured). With batches of ten
the GPU mostly waits for the interpreter, so more workers help. After four rounds on `digits`, the losses of FedAvg,
FedPer, Ditto and PeFLL on GPU and CPU differ by less than 10⁻⁶ relative to their size. Runs on a GPU are not repeatable
to the last bit: parameters of a FedPer run with LeNet that was resumed after one of three rounds differed by up to
2·10⁻⁶ from an uninterrupted run. [Every method on a GPU](../gpu.md#every-method-on-a-gpu).
"""


if __name__ == "__main__":
    main()
