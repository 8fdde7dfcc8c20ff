"""The cell of a run's process: what cannot be enforced is told, or refused if the policy is strict; the filter."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from florilegium.apps.settings.configuration import defaults
from florilegium.common.errors import ConfigurationError
from florilegium.owner.cells import Cells
from florilegium.owner.confine import cell as cell_module
from florilegium.owner.confine import landlock, namespaces, seccomp
from florilegium.owner.confine.cell import Cell, kept_environment
from florilegium.owner.confine.probe import probe
from florilegium.owner.denied import DeniedError
from florilegium.owner.keeper import Keeper
from tests.owner.made import CLIENT, HEAD, NOW, TRAIN, entries, made


def _cell(folder: Path, processes: int = 0) -> Cell:
    (folder / "scratch").mkdir(exist_ok=True)
    return Cell((), (), str(folder / "scratch"), 4000, 100, 256, processes, strict=False)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file beside the cell."""
    (tmp_path / "secret").write_text("x")
    return tmp_path / "secret"


def test_this_machine_enforces_a_cell(tmp_path: Path, secret: Path) -> None:
    assert probe(_cell(tmp_path), secret) == []
    assert probe(_cell(tmp_path, processes=3), secret) == []


def _refused(*arguments: object, **named: object) -> None:
    raise OSError(38, "Function not implemented")


def test_what_is_not_enforced_is_found_by_trying(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(landlock, "restrict", _refused)
        found = "; ".join(probe(_cell(tmp_path), secret))
        assert "files (Landlock) (Function not implemented)" in found
        assert "it reads no other files" in found
        assert "it writes no other files" in found
        assert "make a socket" not in found
    with monkeypatch.context() as patch:
        patch.setattr(seccomp, "restrict", _refused)
        found = "; ".join(probe(_cell(tmp_path), secret))
        assert "system calls (seccomp)" in found
        assert "it can make a socket" in found
        assert "it starts no processes" in found
        assert "it reads no other files" not in found
    with monkeypatch.context() as patch:
        patch.setattr(namespaces, "unshare", _refused)
        assert "a namespace of the network" in "; ".join(probe(_cell(tmp_path), secret))


def test_a_file_may_vanish_while_the_files_of_a_run_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, scan = Cells(tmp_path / "state", None, None, []), os.scandir
    home = cells.scratch(7)
    (home / "inner").mkdir(parents=True)
    for name, size in (("gone", 1_000_000), ("kept", 3_000_000), ("inner/kept", 2_000_000)):
        (home / name).write_bytes(b"x" * size)
    limits = made(tmp_path / "owner", HEAD.replace("[limits]", "[limits]\ndisk = 4") + TRAIN).policy().limits

    @contextmanager
    def vanishing(folder: str | Path) -> Iterator[list[os.DirEntry[str]]]:
        with scan(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        (home / "gone").unlink(missing_ok=True)
        yield found

    monkeypatch.setattr(os, "scandir", vanishing)
    with pytest.raises(DeniedError, match="the run keeps 5 MB; at most 4"):
        cells.watch(7, "", limits)()


def test_a_strict_policy_needs_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "restrict", _refused)
    cells = Cells(tmp_path / "state", tmp_path / "data", None, [])
    home = made(tmp_path / "owner", HEAD + TRAIN)
    cells.scratch(7).mkdir(parents=True)  # a supervisor that was killed has left it
    Keeper(home, CLIENT, defaults(), cells, lambda: NOW)
    assert not cells.scratch(7).exists()
    assert "system calls (seccomp) (Function not implemented)" in entries(home, "start")[0]["not_enforced"]
    home = made(tmp_path / "owner", HEAD.replace("version = 1", "version = 1\nstrict = true") + TRAIN)
    with pytest.raises(ConfigurationError, match="this machine cannot enforce: system calls"):
        Keeper(home, CLIENT, defaults(), cells, lambda: NOW)


def test_a_strict_cell_ends_the_process(tmp_path: Path) -> None:
    code = f"""
from florilegium.owner.confine import landlock
from florilegium.owner.confine.cell import Cell
def refused(*a): raise OSError(38, "no")
landlock.restrict = refused
Cell((), (), {str(tmp_path)!r}, 4000, 100, 256, 0, True).enter()
print("has gone on", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "strict" in done.stderr
    assert not done.stdout


def _as(user: str, tmp_path: Path) -> Cells:
    cells = Cells(tmp_path / "state", tmp_path / "data", None, [])
    policy = HEAD.replace("[limits]", f'[limits]\nuser = "{user}"')
    Keeper(made(tmp_path / "owner", policy + TRAIN), CLIENT, defaults(), cells, lambda: NOW)
    return cells


def test_a_run_may_be_another_user(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of root goes on as a user who owns nothing but its folders; any other has not the right to."""
    monkeypatch.setattr(cell_module, "_python", list)  # root's own Python may be closed to others
    with TemporaryDirectory() as name:
        scratch = Path(name) / "scratch"
        scratch.mkdir()
        Path(name).chmod(0o755)  # pytest's own folders are closed to other users
        cell = replace(_cell(Path(name)), user=(4242, 4243))
        if os.geteuid() != 0:
            assert "another user (Operation not permitted)" in probe(cell, secret)
            return
        with pytest.raises(ConfigurationError, match=f"a user who .*cannot write to {scratch}"):
            probe(cell, secret)
        os.chown(scratch, 4242, 4243)
        if (child := os.fork()) == 0:
            try:
                missing = cell.enter()
                told = f"{os.getresuid()} {os.getresgid()} {os.getgroups()} {missing}"
                (scratch / "told").write_text(told)
                os.setuid(0)  # it cannot go back
                (scratch / "told").write_text("root again")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert (scratch / "told").read_text() == "(4242, 4242, 4242) (4243, 4243, 4243) [] []"
        assert (scratch / "told").stat().st_uid == 4242


def test_the_folders_of_a_run_are_its_users(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        with pytest.raises(ConfigurationError, match="has no user 'nobody-knows'"):
            _as("nobody-knows", tmp_path)
        return
    found = pwd.getpwnam("nobody")
    policy = made(tmp_path / "owner", HEAD.replace("[limits]", '[limits]\nuser = "nobody"')).policy()
    cells = Cells(tmp_path / "state", None, None, [])
    (tmp_path / "state" / "trial").mkdir(parents=True, mode=0o700)
    (tmp_path / "state" / "trial" / "head").write_text("of an earlier run")
    (tmp_path / "state" / "trial" / "link").symlink_to(tmp_path / "owner")
    cell = cells.cell(1, "trial", policy)
    assert cell.user == (found.pw_uid, found.pw_gid)
    for place in (*cell.writable, cell.scratch, tmp_path / "state" / "trial" / "head"):
        assert Path(place).stat().st_uid == found.pw_uid
    assert (tmp_path / "owner").stat().st_uid == 0
    assert (tmp_path / "state").stat().st_uid == 0
    with pytest.raises(ConfigurationError, match="has no user 'nobody-knows'"):
        _as("nobody-knows", tmp_path)


def test_the_name_of_a_run_is_no_path(tmp_path: Path) -> None:
    cells = Cells(tmp_path / "state", None, None, [])
    policy = made(tmp_path / "owner", HEAD).policy()
    for name in ("../other", "/etc", ".", "_frozen", "a/b"):
        with pytest.raises(DeniedError, match="not the name of a run"):
            cells.cell(1, name, policy)
    assert cells.cell(1, "trial", policy).writable == tuple(
        str(tmp_path / "state" / name) for name in ("_frozen", "_privacy", "trial")
    )


def test_few_variables_are_kept() -> None:
    before = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "AWS_SECRET_ACCESS_KEY": "x", "TOKEN": "y", "HOME": "/root"}
    assert kept_environment(before) == {"PATH": "/bin", "OMP_NUM_THREADS": "1", "HOME": "/root"}


def _decided(program: list[tuple[int, int, int, int]], architecture: int, number: int, first: int = 0) -> int:
    """Carry out a filter as the kernel does; return its decision."""
    data, value, place = {0: number, 4: architecture, 16: first}, 0, 0
    while True:
        code, yes, no, operand = program[place]
        place += 1
        if code == 0x20:  # load a word
            value = data[operand]
        elif code == 0x15:  # jump if equal
            place += yes if value == operand else no
        elif code == 0x45:  # jump if a bit is set
            place += yes if value & operand else no
        else:
            assert code == 0x06
            return operand


ALLOW, REFUSE, UNKNOWN, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
X86, ARM = 0xC000003E, 0xC00000B7
THREAD, FORK = 0x3D0F00, 0x1200011
"""Flags with which the C library makes a thread, and a process."""


@pytest.mark.parametrize(
    ("machine", "kind", "numbers"),
    [
        # Of <asm/unistd.h>: read, write, socketpair, futex; then socket, ptrace, io_uring_setup, unshare, mount.
        ("x86_64", X86, ((0, 1, 53, 202), (41, 101, 425, 272, 165), 56)),
        ("aarch64", ARM, ((63, 64, 199, 98), (198, 117, 425, 97, 40), 220)),
    ],
)  # fmt: skip
def test_the_filter_decides_as_listed(
    machine: str, kind: int, numbers: tuple[tuple[int, ...], tuple[int, ...], int]
) -> None:
    allowed, forbidden, clone = numbers
    for forks in (False, True):
        program = seccomp.instructions(machine, forks=forks)
        assert {_decided(program, kind, number) for number in allowed} == {ALLOW}
        assert {_decided(program, kind, number) for number in forbidden} == {REFUSE}
        assert _decided(program, kind, 435) == UNKNOWN  # clone3
        assert _decided(program, kind, clone, THREAD) == ALLOW
        assert _decided(program, kind, clone, FORK) == (ALLOW if forks else REFUSE)
        assert _decided(program, 0x40000003, allowed[0]) == KILL  # calls of another architecture
        assert _decided(program, kind, allowed[0] | 0x40000000) == KILL
    if machine == "x86_64":
        program = seccomp.instructions(machine, forks=False)
        assert {_decided(program, kind, number) for number in (57, 58)} == {REFUSE}  # fork and vfork
    with pytest.raises(OSError, match="no list"):
        seccomp.instructions("riscv64", forks=False)
