"""``florilegium cluster``: what is submitted to Slurm or Kubernetes, and the job that this carries out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from florilegium.apps.cli.groups import RUN, Group
from florilegium.apps.cli.options import CORES, Assignments, EngineOption, Recipe, RunsDir, Workers, runs_folder

Name = Annotated[str, typer.Option(help="name of the job and of the run")]
Nodes = Annotated[int, typer.Option(min=1, help="number of machines")]
Cpus = Annotated[int, typer.Option(min=1, help="CPUs of each, and workers")]
Memory = Annotated[int, typer.Option(min=1, help="memory of each in GiB")]
Gpus = Annotated[int, typer.Option(min=0, help="GPUs of each")]

clusters = Group(RUN, no_args_is_help=True, help="Write what Slurm or Kubernetes is given; carry out its job.")


@clusters.add("florilegium cluster slurm ppfe-cifar10-s2 --name night --nodes 4 --cpus 16 --runs-dir /shared/runs")
def slurm(
    recipe: Recipe = None,
    name: Name = "run",
    nodes: Nodes = 2,
    cpus: Cpus = 8,
    memory: Memory = 16,
    gpus: Gpus = 0,
    time: Annotated[str, typer.Option(help="time limit of the job, as Slurm writes it")] = "08:00:00",
    assignments: Assignments = None,
    runs_dir: RunsDir = None,
) -> None:
    """Print a batch script that starts Ray and the run, and is queued again if the job is preempted."""
    from florilegium.cluster.launchers import Plan
    from florilegium.cluster.launchers import slurm as script

    print(script(Plan(name, nodes, cpus, memory, gpus, _words(recipe, assignments, runs_dir)), time), end="")


@clusters.add("florilegium cluster kubernetes ppfe-cifar10-s2 --name night --image site/florilegium --claim shared")
def kubernetes(
    image: Annotated[str, typer.Option(help="container image with Florilegium")],
    claim: Annotated[str, typer.Option(help="persistent volume claim that all pods have at /shared")],
    recipe: Recipe = None,
    name: Name = "run",
    nodes: Nodes = 2,
    cpus: Cpus = 8,
    memory: Memory = 16,
    gpus: Gpus = 0,
    assignments: Assignments = None,
    runs_dir: RunsDir = Path("/shared/runs"),
) -> None:
    """Print a KubeRay RayCluster and a Job that carries out the run, and again if its pod is preempted."""
    from florilegium.cluster.launchers import Plan
    from florilegium.cluster.launchers import kubernetes as objects

    own = [*(assignments or []), "cache-dir=/shared/cache"]
    print(objects(Plan(name, nodes, cpus, memory, gpus, _words(recipe, own, runs_dir)), image, claim), end="")


@clusters.add("florilegium cluster job night ppfe-cifar10-s2:fedper --runs-dir /shared/runs")
def job(
    name: Annotated[str, typer.Argument(help="name of the run")],
    engine: EngineOption = "auto",
    recipe: Recipe = None,
    workers: Workers = CORES,
    grace: Annotated[float, typer.Option(min=0, help="seconds after SIGTERM in which the present round may end")] = 25,
    assignments: Assignments = None,
    runs_dir: RunsDir = None,
) -> None:
    """Begin a run, or go on with it. After SIGTERM it stops with a checkpoint and exit status 75."""
    from florilegium.apps.cli.run import resume, run
    from florilegium.apps.runs.run_list import state_of
    from florilegium.cluster.preemption import preemptible

    path = Path(runs_folder(runs_dir)).expanduser() / name
    with preemptible(grace):
        if not (path / "config.toml").exists():
            run(recipe, engine, workers, [*(assignments or []), f"run-name={name}"], None, path.parent)
        elif state_of(path) == "completed":
            print(path)
        else:
            resume(name, engine, workers, None, path.parent)


def _words(recipe: str | None, assignments: list[str] | None, runs_dir: Path | None) -> list[str]:
    words = [recipe] if recipe else []
    words += [word for one in assignments or [] for word in ("--set", one)]
    return words + (["--runs-dir", str(runs_dir)] if runs_dir else [])
