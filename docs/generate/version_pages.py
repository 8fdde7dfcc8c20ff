"""The tables of ``docs/versions.md``: tested versions of other packages, and what is used inside of Flower."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from florilegium.apps.origins.tested import DATE, PYTHONS, TESTED

_JOB = "tests/apps/engines/test_run.py::test_a_simulation_computes_what_the_same_code_computes_in_one_process"
_FLOWER = (
    "tests/test_flower_inside.py", "tests/apps/origins/test_app_folder.py", "tests/clients/core/test_wire.py",
    "tests/apps/devices/test_supernode.py", _JOB,
    "tests/apps/engines/test_run.py::test_plain_flwr_run_does_the_same_job",
    "tests/apps/devices/test_deployment.py::test_devices_learn_what_a_simulation_learns[ppfe]",
    "tests/apps/devices/test_deployment.py::test_supernodes_of_flower_do_the_same",
)  # fmt: skip
_PRIVACY = ("tests/privacy", "tests/clients/core/test_dp_sgd.py", "tests/strategies/layers/test_client_privacy.py")
JOBS = {
    "flwr": _FLOWER,
    "flwr-datasets": ("tests/partitions", _JOB),
    "datasets": ("tests/partitions", _JOB),
    "torch": ("tests/models", "tests/clients", "tests/privacy", "tests/methods/test_every_method.py", _JOB),
    "opacus": (*_PRIVACY, "tests/methods/test_private_pefll.py", _JOB),
    "dp-accounting": (*_PRIVACY, "tests/methods/test_mdm.py", _JOB),
    "all": (*_FLOWER, *_PRIVACY, "tests/clients/core", "tests/partitions", "tests/methods/test_every_method.py"),
}
"""Tests that use a package most, by package: single tests, and files and folders, whose long tests are left out."""

_WORDS = {
    "flwr": "app bundle, command line, `flwr run`, two devices of each kind of SuperNode",
    "flwr-datasets": "datasets and partitions",
    "datasets": "datasets and partitions",
    "torch": "networks, clients, privacy, every method",
    "opacus": "privacy of examples and clients",
    "dp-accounting": "privacy of examples and clients",
    "all": "all of these but networks",
}
"""What these tests are about."""
_PYTHONS = (
    "Python 3.12 and 3.13 passed the tests of all packages together, with Ray and on devices.",
    "`make test-versions` repeats them.",
)
"""What was tested with other versions of Python."""

PUBLIC = (
    "flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.client", "flwr.simulation",
    "flwr_datasets", "flwr_datasets.partitioner",
)  # fmt: skip
"""Modules whose ``__all__`` lists Flower's documented interface."""
INSIDE = {
    "apps/devices/bundles.py": ("make the bundle of an app", "tests/owner/test_signing.py::test_a_signed_app_is_known"),
    "apps/devices/flower_inside.py": (
        "install and load an app",
        "tests/apps/devices/test_supernode.py::test_a_process_stays_and_takes_the_code_of_its_run",
    ),
    "apps/devices/frames.py": (
        "records as bytes, between a run's process and the SuperNode",
        "tests/apps/devices/test_frames.py::test_what_is_sent_is_received",
    ),
    "apps/devices/patient_superlink.py": (
        "run a SuperLink whose database waits for longer",
        "tests/apps/devices/test_patient_superlink.py::test_its_database_waits_for_longer",
    ),
    "apps/devices/superlink.py": (
        "connect a device to the SuperLink",
        "tests/test_flower_inside.py::test_functions_take_the_arguments_that_they_are_given",
    ),
    "apps/engines/ray_simulation.py": ("`flwr run` in the same process", _JOB),
    "benchmarks/peers/flower.py": (
        "Flower's simulation with its former classes, beside ours",
        "tests/test_flower_inside.py::test_functions_take_the_arguments_that_they_are_given",
    ),
    "benchmarks/robust.py": (
        "Flower's robust rules, beside ours",
        "tests/test_flower_inside.py::test_functions_take_the_arguments_that_they_are_given",
    ),
    "strategies/exchange/flower_inside.py": (
        "ids of messages, kinds of errors, `--node-config`",
        "tests/test_flower_inside.py::test_a_message_keeps_the_id_that_it_is_given",
    ),
    "strategies/exchange/flower_objects.py": (
        "send and receive messages with a few of their objects in memory",
        "tests/test_flower_inside.py::test_functions_of_the_grid_that_are_replaced_are_those_it_calls",
    ),
}
"""The modules that use more of Flower than that, with what for, and the test that says what a version changed."""


def names_inside(path: Path) -> list[str]:
    """Return the dotted names of all that a file imports from Flower beyond its documented interface."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if _of_flower(alias.name) and alias.name not in PUBLIC}
        elif isinstance(node, ast.ImportFrom) and node.module and _of_flower(node.module):
            public = import_module(node.module).__all__ if node.module in PUBLIC else ()
            found |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public}
    return sorted(found)


def _of_flower(module: str) -> bool:
    return module.partition(".")[0] in ("flwr", "flwr_datasets")


def tested_table() -> str:
    """Return the table of tested versions."""
    rows = [f"| {package} | {', '.join(versions)} | {_WORDS[package]} |" for package, versions in TESTED.items()]
    rows.append(f"| all packages together | the lowest of each | {_WORDS['all']} |")
    head = [
        f"All passed on {DATE} (Linux, Python {PYTHONS[0]}).",
        "",
        "| package | versions | tests |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *rows, "", *_PYTHONS]) + "\n"


def inside_table() -> str:
    """Return the table of modules that use the inside of Flower."""
    rows = [f"| `{path}` | {what} | `{test}` |" for path, (what, test) in INSIDE.items()]
    return "\n".join(["| module | used to | test |", "|---|---|---|", *rows]) + "\n"


def version_tables() -> str:
    """Return the generated part of ``docs/versions.md``."""
    return f"## Tested versions\n\n{tested_table()}\n## What is used inside of Flower\n\n{inside_table()}"
