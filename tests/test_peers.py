"""The section ``peers`` of the benchmarks, without any of the packages."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers import checkout, measuring
from benchmarks.peers.checkout import Checkout
from benchmarks.peers.measuring import Course, PeerRow
from benchmarks.peers.packages import METHODS, PEERS, Peer

SCRIPT = """
import json, sys, time
print("a package's own line"); print("[1, 2]"); print('{"round": 1}')
for number in range(1, int(sys.argv[1]) + 1):
    print(json.dumps({"round": number, "time": time.monotonic(), "steps": 30 * number}), flush=True)
"""


def git(*words: str | Path) -> str:
    """Run git with a name and an address; return what it prints."""
    who = ("-c", "user.name=Someone", "-c", "user.email=someone@example.org")
    return subprocess.run(["git", *who, *map(str, words)], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Checkout:
    """The second of three commits of a repository in ``clones/Someone+Else/repo``, whose module knows its number."""
    repository = tmp_path / "clones" / "Someone+Else" / "repo"
    git("init", "--quiet", repository)
    commits = []
    for number in (1, 2, 3):
        for name in ("system/deep/found_module.py", "keys.yaml", "picture.png", "data.npz"):
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_text(f"NUMBER = {number}")
        git("-C", repository, "add", ".")
        git("-C", repository, "commit", "--quiet", "--message", f"Commit {number}")
        commits.append(git("-C", repository, "rev-parse", "HEAD"))
    return Checkout("Someone/Else", commits[1], "system/deep")


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_a_checkout_has_the_code_of_its_commit(
    tmp_path: Path, source: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(checkout.CLONES, str(tmp_path / "clones"))
    source.write(tmp_path / "environment" / "checkout")
    expected = {"system/deep/found_module.py": "NUMBER = 2", "keys.yaml": "NUMBER = 2"}
    assert contents(tmp_path / "environment" / "checkout") == expected
    assert source.notes == f"Someone/Else {source.commit[:7]}"


def test_a_checkout_without_clones_is_fetched(
    tmp_path: Path, source: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(checkout.CLONES, raising=False)
    monkeypatch.setattr(checkout, "SITE", f"file://{tmp_path}/site")
    git("clone", "--quiet", "--bare", tmp_path / "clones" / "Someone+Else" / "repo", tmp_path / "site/Someone/Else")
    source.write(tmp_path / "checkout")
    assert contents(tmp_path / "checkout").keys() == {"system/deep/found_module.py", "keys.yaml"}


def test_modules_of_a_checkout_are_imported_in_its_environment(
    tmp_path: Path, source: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(checkout.CLONES, str(tmp_path / "clones"))
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    source.write(environment / "checkout")
    source.make_importable(environment / "checkout", environment)
    words = [environment / "bin" / "python", "-c", "import found_module; print(found_module.NUMBER)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "2\n"


@pytest.mark.parametrize(("repository", "commit"), [("Someone/Missing", ""), ("Someone/Else", 40 * "0")])
def test_a_package_without_checkout_has_a_row(
    tmp_path: Path, source: Checkout, monkeypatch: pytest.MonkeyPatch, repository: str, commit: str
) -> None:
    monkeypatch.setenv(checkout.CLONES, str(tmp_path / "clones"))
    missing = Checkout(repository, commit or source.commit)
    monkeypatch.setattr(measuring, "PEERS", [Peer("Else", "own", ["fedavg"], ["else==1"], missing)])
    (row,) = measuring.rows(2, methods=["fedavg"])
    assert row.cells()[:6] == ("FedAvg", "Else", "–", "–", "–", "–")
    assert row.cells()[6].startswith("no checkout: ")
    assert (40 * "0" if commit else "Someone+Missing/repo") in row.cells()[6]


def test_an_environment_is_made_once_for_the_packages_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = [Peer(name, "fluke", ["fedavg"], ["else==1"], workers=workers) for name, workers in (("A", 1), ("B {}", 0))]
    made, commands = list[str](), list[list[str]]()

    def make(folder: Path, peer: Peer) -> str:
        made.append(peer.module)
        return ""

    def follow(words: list[str], rounds: int, folder: Path) -> Course:
        commands.append(words[-3:])
        return Course([1, 2, 3], 0, 0, 0)

    monkeypatch.setattr(measuring, "PEERS", [Peer("Else", "own", ["fedavg"], ["else==1"]), *pair])
    monkeypatch.setattr(measuring, "make_environment", make)
    monkeypatch.setattr(measuring, "follow", follow)
    rows = measuring.rows(3, passes=1, rounds=1, methods=["fedavg"], modules=["fluke"])
    assert ([row.what for row in rows], made) == (["A", "B 3"], ["fluke"])
    assert commands == [["fedavg", "3", "1"], ["fedavg", "3", "3"]]


def test_notes_say_what_was_measured_and_how_it_differs() -> None:
    pinned = Checkout("Someone/Else", 40 * "a")
    peer = Peer("Else", "own", ["fedavg"], ["else==1"], pinned, differs={"ditto": "one network"}, python="3.13")
    assert peer.notes("fedavg") == "Someone/Else aaaaaaa, Python 3.13"
    assert peer.notes("ditto") == "Someone/Else aaaaaaa, Python 3.13; one network"
    assert Peer("Else", "own", ["fedavg"], ["else==1", "more==2"]).notes("fedavg") == "else==1, more==2"


def test_a_script_is_followed_by_its_stamps(tmp_path: Path) -> None:
    before = time.monotonic()
    course = measuring.follow([sys.executable, "-c", SCRIPT, "5"], 5, tmp_path)
    assert len(course.ends) == 5
    assert 0 < course.ends[0] < course.ends[-1] < time.monotonic() - before
    assert course.steps == 30


def test_a_script_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="1 of 4 rounds ended: ValueError: no data"):
        measuring.follow([sys.executable, "-c", SCRIPT + "raise ValueError('no data')", "1"], 4, tmp_path)


def test_rounds_are_measured_after_the_first_ones() -> None:
    assert Course([9, 19, 20, 22, 25], 0, 0, 0).seconds == 2


def test_a_row_has_all_passes_and_steps_that_differ() -> None:
    courses = [Course([3, 4, 4.5], 1.25, 750, 0.9), Course([2, 3, 3.75], 1, 751, 1)]
    cells = PeerRow("fedavg", "Else, 2 workers", courses, "else==1").cells()
    assert cells[2:6] == ("0.50–0.75", "1.00–1.25", "2.0–3.0", "1.00")
    assert cells[6] == "else==1; 750–751 SGD steps a round, not 750"
    assert PeerRow("fedavg", "Else", courses[:1], "else==1").cells()[6] == "else==1"
    assert "not 1500" in PeerRow("ditto", "Else", courses[:1]).cells()[6]


def test_a_package_without_environment_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PEERS", [Peer("Else", "own", ["fedavg"], ["else==1"], python="2.0")])
    (row,) = measuring.rows(2, methods=["fedavg"])
    assert row.cells()[:6] == ("FedAvg", "Else", "–", "–", "–", "–")
    assert row.cells()[6].startswith("no environment: ")
    assert "2.0" in row.cells()[6]


def test_lines_of_other_methods_are_kept(tmp_path: Path) -> None:
    target, courses = tmp_path / "measured.md", [Course([3, 4, 4.5], 1.25, 750, 0.9)]
    measuring.write(measuring.lines([PeerRow("fedavg", "Else", courses), PeerRow("ditto", "Else", courses)], 2), target)
    measuring.write(measuring.lines([PeerRow("fedavg", "Other", courses)], 2), target)
    head, rule, first, second, end = target.read_text(encoding="utf-8").splitlines()
    assert head.count("|") == rule.count("|") == first.count("|") == second.count("|")
    assert (first[:17], second[:16], end) == ("| FedAvg | Other ", "| Ditto | Else |", "")


def test_lines_of_other_packages_are_kept_in_their_places(tmp_path: Path) -> None:
    target, slow, fast = tmp_path / "measured.md", Course([3, 4, 5.5], 1, 750, 1), Course([3, 4, 4.5], 1, 750, 1)
    before = [PeerRow(method, what, [slow]) for method in ("fedavg", "ditto") for what in ("A", "B", "C")]
    measuring.write(measuring.lines(before, 2), target)
    after = [PeerRow("fedavg", "B", [fast]), PeerRow("fedavg", "D", [fast])]
    measuring.write(measuring.lines(after, 2), target, whole=False)
    cells = [line.strip("| ").split(" | ")[:3] for line in target.read_text(encoding="utf-8").splitlines()[2:-1]]
    assert cells == [
        ["FedAvg", "A", "1.50"], ["FedAvg", "B", "0.50"], ["FedAvg", "C", "1.50"], ["FedAvg", "D", "0.50"],
        ["Ditto", "A", "1.50"], ["Ditto", "B", "1.50"], ["Ditto", "C", "1.50"],
    ]  # fmt: skip


def test_every_script_is_there() -> None:
    for peer in PEERS:
        assert (Path(measuring.__file__).parent / f"{peer.module}.py").exists()
        assert {*peer.methods, *peer.differs} <= METHODS.keys()
        assert not peer.checkout or re.fullmatch("[0-9a-f]{40}", peer.checkout.commit)
