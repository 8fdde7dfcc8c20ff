"""What is submitted to a scheduler: Ray's head, its workers, and a run that begins, or goes on where it was stopped."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from florilegium.common.errors import ConfigurationError, PreemptedError

PORT = 6379
GRACE = 30
"""Seconds between a scheduler's SIGTERM and its SIGKILL that the files ask for."""
_MARGIN = 5
"""Of these, seconds that are left for a run that stops at once."""


@dataclass(frozen=True)
class Plan:
    """What is asked of a scheduler.

    Attributes:
        name: name of the job and of the run; lower-case letters, digits and '-'.
        nodes: number of machines.
        cpus: CPUs of each, and workers.
        memory: memory of each in GiB.
        gpus: GPUs of each.
        job: the words after ``florilegium cluster job NAME``.
    """

    name: str
    nodes: int
    cpus: int
    memory: int
    gpus: int
    job: Sequence[str]

    def __post_init__(self) -> None:
        if not self.name.replace("-", "").isalnum() or self.name != self.name.lower() or not self.name[0].isalpha():
            raise ConfigurationError(
                f"--name: '{self.name}' cannot name a job; use lower-case letters, digits and '-', a letter first"
            )

    @property
    def words(self) -> list[str]:
        """The command of the run."""
        workers = str(self.nodes * self.cpus)
        return ["florilegium", "cluster", "job", self.name, *self.job, "--workers", workers,
                "--grace", str(GRACE - _MARGIN)]  # fmt: skip


def slurm(plan: Plan, time: str) -> str:
    """Return a batch script for ``sbatch``; ``time``: the limit as Slurm writes it, such as 08:00:00."""
    gpus = f"\n#SBATCH --gpus-per-node={plan.gpus}" if plan.gpus else ""
    return f"""#!/bin/bash
#SBATCH --job-name={plan.name}
#SBATCH --nodes={plan.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={plan.cpus}
#SBATCH --mem={plan.memory}G{gpus}
#SBATCH --time={time}
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@{GRACE}
# Submit it with sbatch. A lost machine costs what its workers were doing. If the job is preempted, or its time is over,
# the run stops with a checkpoint, and the job is queued again.
set -u
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address="${{nodes[0]}}:$((20000 + SLURM_JOB_ID % 10000))"
RAY_AUTH_TOKEN="$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_ADDRESS="$address" OMP_NUM_THREADS=1

one() {{ srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" "${{@:2}}"; }}

one "${{nodes[0]}}" ray start --head --port "${{address#*:}}" --num-cpus {plan.cpus} --include-dashboard=false \\
    --disable-usage-stats --block &
until ray health-check --address "$address" > /dev/null 2>&1; do sleep 2; done
for node in "${{nodes[@]:1}}"; do
    # A machine that was cut off comes back by itself.
    (while true; do
        one "$node" ray start --address "$address" --num-cpus {plan.cpus} --disable-usage-stats --block
        sleep 10
    done) &
done

{shlex.join(plan.words)} &
run=$!
trap 'kill -TERM "$run"' TERM
wait "$run"
status=$?
while kill -0 "$run" 2> /dev/null; do
    wait "$run"
    status=$?
done
if [ "$status" -eq {PreemptedError.exit_status} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def kubernetes(plan: Plan, image: str, claim: str) -> str:
    """Return a KubeRay ``RayCluster`` and a ``Job`` that joins it without CPUs, as YAML.

    Args:
        plan: what is asked for.
        image: the container image, with Florilegium.
        claim: the persistent volume claim that all pods have at ``/shared``, with runs, cache and data.
    """
    head = f"{plan.name}-head-svc:{PORT}"
    resources: dict[str, object] = {"cpu": str(plan.cpus), "memory": f"{plan.memory}Gi"}
    if plan.gpus:
        resources["nvidia.com/gpu"] = str(plan.gpus)

    def pod(name: str, asked: dict[str, object], **own: object) -> dict[str, object]:
        container: dict[str, object] = {
            "name": name, "image": image, "resources": {"requests": asked, "limits": asked},
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}], **own,
        }  # fmt: skip
        volume = {"name": "shared", "persistentVolumeClaim": {"claimName": claim}}
        return {"terminationGracePeriodSeconds": GRACE, "containers": [container], "volumes": [volume]}

    workers = {
        "groupName": "workers", "replicas": plan.nodes - 1, "minReplicas": 0, "maxReplicas": plan.nodes - 1,
        "rayStartParams": {"num-cpus": str(plan.cpus)}, "template": {"spec": pod("worker", resources)},
    }  # fmt: skip
    cluster = {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": plan.name},
        "spec": {
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": str(plan.cpus), "include-dashboard": "false"},
                "template": {"spec": pod("head", resources)},
            },
            "workerGroupSpecs": [workers] if plan.nodes > 1 else [],
        },
    }  # fmt: skip
    script = (
        f"until ray health-check --address {head}; do sleep 2; done\n"
        f"ray start --address {head} --num-cpus 0 --disable-usage-stats\n"
        f"exec {shlex.join(plan.words)}\n"
    )
    own = pod(
        "run", {"cpu": "1", "memory": f"{plan.memory}Gi"}, command=["/bin/bash", "-c", script],
    )  # fmt: skip
    own["restartPolicy"] = "Never"
    container = own["containers"][0]  # type: ignore[index]
    container["env"].append({"name": "RAY_ADDRESS", "value": head})
    ignored = [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [PreemptedError.exit_status]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"{plan.name}-run"},
        "spec": {"backoffLimit": 3, "podFailurePolicy": {"rules": ignored}, "template": {"spec": own}},
    }  # fmt: skip
    # JSON is YAML; a document for each object.
    return "".join(f"---\n{json.dumps(one, indent=2)}\n" for one in (cluster, job))
