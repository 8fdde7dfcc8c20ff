"""The first policy of a device, from a few questions: a commented file that its owner then changes by hand."""

from __future__ import annotations

import datetime
import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from florilegium.common.errors import ConfigurationError
from florilegium.owner.home import POLICY, Home


@dataclass(frozen=True)
class Wishes:
    """What the questions of ``florilegium device policy init`` are about.

    Attributes:
        apps: hashes of bundles, and public keys, that may run; each has 64 hexadecimal digits.
        keys: which of them are keys.
        method: the method of the runs.
        rounds: the most rounds of a run.
        epsilon: the total ε; 0: none, runs need not protect examples.
        rows: the least number of examples that a reply may be about.
        columns: columns that may be read; [] for data that are no table.
        norm: the largest norm of an update.
        noise: noise that the gate adds ÷ norm.
        megabytes: the most that leaves in a day.
        until: the last day.
        free: keys that may have any value.
    """

    hashes: Sequence[str]
    keys: Sequence[str]
    method: str
    rounds: int
    epsilon: float
    rows: int
    columns: Sequence[str]
    norm: float
    noise: float
    megabytes: int
    until: datetime.date
    free: Sequence[str]


def write_policy(folder: Path, wishes: Wishes) -> Home:
    """Write the policy into a new folder of the owner's, of mode 0700.

    Raises:
        ConfigurationError: if there is a policy already.
    """
    path = folder / POLICY
    if path.exists():
        raise ConfigurationError(f"there is a policy already: {path}; change it with an editor")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text(wishes))
    return Home(folder.resolve())


def text(w: Wishes) -> str:
    """Return the text of a policy."""
    unit = (
        f'"privacy.unit" = "example"                  # every example is protected\n'
        f'"privacy.epsilon" = {{ max = {w.epsilon:g} }}              # ε that a run promises\n'
        '"privacy.delta" = { max = 1e-5 }\n"privacy.clip-norm" = "any"\n'
        if w.epsilon else ""
    )  # fmt: skip
    return f"""\
# What may be done with this device's data. What is not named here is refused.
# Check changes with `florilegium device policy check`; they count from the next message on.
version = 1
mode = "enforce"       # "report": refuse nothing, only log what would be refused
strict = false         # true: do not start where a part of the isolation cannot be enforced
tell = "line"          # what a server learns of a refusal: "nothing", the "line" of this file, or the "reason"

[apps]                 # whose code may run
hashes = {_list(w.hashes)}
keys = {_list(w.keys)}
revoked = []           # hashes and keys that count no more

[runs]
accounts = ["any"]     # who may start runs, as the SuperLink says
methods = {_list([w.method])}
free = {_wrapped(w.free)}

[runs.keys]            # keys with bounds: a value, a list, a range {{ min, max }}, or "any"
rounds = {{ max = {w.rounds} }}
{unit}
[data]
rows = {w.rows}              # the fewest examples that a reply may be about
columns = {_list(w.columns)}
announce = 0           # a number to state in place of the true number of examples; 0: the true one

[limits]
until = {w.until}
hours = ["00:00-24:00"]
run-bytes = {w.megabytes * 1_000_000}
day-bytes = {w.megabytes * 1_000_000}
seconds = 3600.0       # the longest time for one request
memory = 8192          # MB
disk = 4096            # MB

[budget]
epsilon = {float(w.epsilon)}          # total over all runs and apps; 0: not limited
delta = 1e-5

[[reply]]              # updates of the model
phase = "train"
reduce = "delta"
norm = {float(w.norm)}             # longer ones are scaled down
noise = {float(w.noise)}            # Gaussian noise that this device adds, relative to norm
figures = ["loss"]
digits = 3             # of each figure
bytes = {min(w.megabytes, 100) * 1_000_000}

[[reply]]              # tests: figures alone
phase = "test"
reduce = "sum"
figures = ["loss", "accuracy"]
digits = 3
times = 2              # in one round
"""


def _list(values: Sequence[str]) -> str:
    return json.dumps([*values])


def _wrapped(values: Sequence[str]) -> str:
    lines = textwrap.wrap(", ".join(map(json.dumps, values)), 96, break_on_hyphens=False)
    return "[\n    " + "\n    ".join(lines) + ",\n]"
