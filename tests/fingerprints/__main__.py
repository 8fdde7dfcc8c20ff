"""The command line of the fingerprints.

    python -m tests.fingerprints before.json            then, after the change:
    python -m tests.fingerprints after.json before.json

Every method, and options that take another way through the code, run for a few rounds: through an in-process grid with
two nodes, where the messages are hashed; the same, interrupted and resumed; and as the command line does it, with one
worker and with two. With a second file, the differences are printed, and the exit status says whether there are any.
Run folders that one version has kept half-way (``--keep``) are resumed by another (``--resume``), and compared with
what the first version has resumed itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.fingerprints import COMMON, Keys, cases, ways
from tests.fingerprints.hashing import WIRE
from tests.fingerprints.ways import Found


def main() -> int:
    """Write the fingerprints; compare them where there is something to compare them with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="runs whose names contain one of these words, separated by |")
    parser.add_argument("--results-only", action="store_true", help=f"do not compare {' and '.join(WIRE)}")
    parser.add_argument("--devices", action="store_true", help="instead, a SuperLink and two SuperNodes")
    parser.add_argument("--simulation", action="store_true", help="instead, in Ray")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="also keep run folders, half-way")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="instead, resume the runs kept there")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    words = arguments.only.split("|")
    wanted = {name: keys for name, keys in cases().items() if any(word in name for word in words)}
    with tempfile.TemporaryDirectory() as home:
        if arguments.devices:
            found = ways.real(COMMON, Path(home))
        elif arguments.simulation:
            found = ways.simulated(wanted, Path(home))
        else:
            found = dict(_one_by_one(wanted, Path(home), arguments.keep, arguments.resume))
    arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if arguments.before is None:
        return 0
    before = {
        name: {way: prints for way, prints in old.items() if way == "resumed" or not arguments.resume}
        for name, old in json.loads(arguments.before.read_text(encoding="utf-8")).items()
        if any(word in name for word in words)
    }
    different = list(_differences(before, found, WIRE if arguments.results_only else ()))
    print(*different, f"{len(different)} differences in {len(found)} runs", sep="\n")
    return bool(different)


def _one_by_one(
    wanted: dict[str, Keys], home: Path, keep: Path | None, kept: Path | None
) -> Iterator[tuple[str, Found]]:
    """Yield each run's name and its fingerprint by the ways; ``kept``: resume those runs instead."""
    for name, keys in wanted.items():
        print(name, file=sys.stderr, flush=True)
        folder = home / (slug := re.sub(r"\W+", "-", name))
        try:
            if kept is None:
                folder.mkdir()
                yield name, ways.in_process(name, keys, folder)
            elif (kept / slug).exists():
                shutil.copytree(kept / slug, folder)
                yield name, {"resumed": ways.resumed(name, keys, folder)}
        except Exception as error:  # the others can still be compared
            traceback.print_exc()
            yield name, {"failed": {"error": f"{type(error).__name__}: {error}"}}
        if keep is not None:
            (half := keep / slug).mkdir(parents=True)
            if not ways.interrupted(name, keys, half):
                shutil.rmtree(half)


def _differences(before: Found, after: Found, ignored: Iterable[str]) -> Iterator[str]:
    """Yield what differs, what failed, and what only one of the two has."""
    for name in {**before, **after}:
        old, new = before.get(name, {}), after.get(name, {})
        for way in {**old, **new}:
            if way not in old or way not in new:
                yield f"{name}, {way}: {'only before' if way in old else f'only now: {new[way]}'}"
                continue
            for what in sorted({**old[way], **new[way]}.keys() - set(ignored)):
                one, other = old[way].get(what), new[way].get(what)
                if isinstance(one, dict) and isinstance(other, dict):
                    different = [part for part in {**one, **other} if one.get(part) != other.get(part)]
                    yield from (f"{name}, {way}, {what}: {part}" for part in different)
                elif one != other:
                    yield f"{name}, {way}, {what}: {one} → {other}"


if __name__ == "__main__":
    sys.exit(main())
