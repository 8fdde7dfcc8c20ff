"""Predictions of a run's models, made in a process of its own, which ends with the request and with the server.

To build a client's model the run is reopened as ``florilegium export`` does: its data are read, and its method's code
is carried out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from florilegium.common.child import leave_signals_to_the_parent
from florilegium.common.errors import FlorilegiumError, RunError
from florilegium.common.foreign import printable
from florilegium.common.pages import Table
from florilegium.common.plugins import installed_only
from florilegium.ui.fields import Field, fields_of

KINDS = (".csv", ".parquet", ".npy", ".png", ".jpg", ".jpeg")
"""What names of files with rows may end in."""
MOST_ROWS = 1000
"""Rows whose predictions are shown."""
SECONDS = 300
"""How long a prediction may take."""
_BUSY = asyncio.Lock()
"""Held while a prediction is made: one at a time, since each loads a network and data."""


@dataclass(frozen=True)
class Predictions:
    """What a model predicts.

    Attributes:
        table: a row for each row of the inputs, at most ``MOST_ROWS``.
        rows: number of rows of the inputs.
        notes: what was noted while the inputs were read.
    """

    table: Table
    rows: int
    notes: tuple[str, ...]


async def predict(run: Path, client: str, kind: str, rows: bytes, *, own_code: bool) -> Predictions:
    """Return what the model of a client predicts for rows; of the global model if ``client`` is "".

    Args:
        run: the run's folder.
        client: the client's number, or its name in the data.
        kind: what the name of a file with these rows would end in, one of ``KINDS``.
        rows: content of that file.
        own_code: whether the run may name code of one's own.

    Raises:
        RunError: if the prediction fails, takes too long, or another one is being made.
    """
    if kind not in KINDS:
        raise RunError(f"rows must be of one of the kinds {', '.join(KINDS)} (found: {printable(kind, 20)!r})")
    with TemporaryDirectory(prefix="florilegium-ui-") as folder:
        file = Path(folder) / f"rows{kind}"
        file.write_bytes(rows)
        found = await _asked(run, client=client, rows=str(file), own_code=own_code)
    return Predictions(Table("", found["head"], found["table"]), found["rows"], tuple(found["notes"]))


async def fields(run: Path, *, own_code: bool) -> list[Field]:
    """Return the columns of a run's data that its models predict from.

    Raises:
        RunError: as :func:`predict`, or if rows of these data cannot be typed.
    """
    found = await _asked(run, own_code=own_code)
    return [Field(**{**one, "choices": tuple(one["choices"])}) for one in found["fields"]]


async def _asked(run: Path, **more: Any) -> dict[str, Any]:
    """Return what the process says to a question about a run.

    Raises:
        RunError: if it says that something is wrong, takes too long, or another one is at work.
    """
    if _BUSY.locked():
        raise RunError("another prediction is being made; try again when it is finished")
    async with _BUSY:
        found = await _said({"run": str(run), **more})
    if "error" in found:
        raise RunError(str(found["error"]).replace(str(more.get("rows")), "the rows").replace(str(run), run.name))
    return found


async def _said(question: dict[str, Any]) -> dict[str, Any]:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # a run's folder must not choose what is downloaded
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "florilegium.ui.predicting",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **offline},
    )  # fmt: skip
    try:
        said, _ = await asyncio.wait_for(child.communicate(json.dumps(question).encode()), SECONDS)
    except TimeoutError as error:
        raise RunError(f"the prediction took longer than {SECONDS} s and was ended") from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode or not said:
        raise RunError(f"the process that predicts has ended with status {child.returncode}: out of memory?")
    return dict(json.loads(said))


class _Notes(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(printable(record.getMessage()))


def _predict(question: dict[str, Any]) -> dict[str, Any]:
    """Return what is predicted, or, without rows, the fields of a row."""
    from florilegium.apps.api.runs import Run
    from florilegium.apps.settings.configuration import read_settings
    from florilegium.partitions.loading import dataset_of

    notes = _Notes()
    logging.getLogger("flwr").addHandler(notes)
    try:
        with nullcontext() if question["own_code"] else installed_only():
            if "rows" not in question:
                return {"fields": [*map(asdict, fields_of(dataset_of(read_settings(Path(question["run"]))[0])))]}
            frame = Run(Path(question["run"])).predict(question["rows"], question["client"] or None)
    except FlorilegiumError as error:
        return {"error": str(error)}
    except Exception as error:  # a run's files may have any content, and a method's code may raise anything
        return {"error": f"{type(error).__name__}: {error}"}
    cells = [
        [f"{cell:.6g}" if isinstance(cell, float) else printable(cell) for cell in row]
        for row in frame.head(MOST_ROWS).itertuples(name=None)
    ]
    head = ["row", *map(printable, frame.columns)]
    return {"head": head, "table": cells, "rows": len(frame), "notes": notes.lines[:20]}


def main() -> None:
    """Read a question as JSON from standard input, write what is predicted to standard output."""
    leave_signals_to_the_parent()
    question = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        found = _predict(question)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
