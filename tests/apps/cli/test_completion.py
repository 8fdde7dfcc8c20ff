"""Completion of ``--set KEY=VALUE``, in the shells themselves: the line after the tabulator key was pressed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from florilegium.apps.cli.completion import complete_assignment
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.settings.configuration import defaults
from tests.processes import ROOT

PROGRAM = f"#!{sys.executable}\nfrom florilegium.apps.cli import main\nmain()\n"
LINES = {
    "run --set round-t": "run --set round-timeout=",
    "run --set rounds=5 --set method=fedpe": "run --set rounds=5 --set method=fedper ",
    "compare fedavg --set kmeans.gaus": "compare fedavg --set kmeans.gaussian=",
    "run --set privacy.unit=exam": "run --set privacy.unit=example ",
}
"""What is typed after the program's name, and the line after one tabulator."""


def test_keys_are_offered_with_their_values_once_there_is_one() -> None:
    assert complete_assignment("learning-rate") == ["learning-rate=", "learning-rate-decay="]
    assert complete_assignment("keep") == ["keep=", "keep=last", "keep=best"]
    assert complete_assignment("keep=b") == ["keep=best"]
    assert complete_assignment("rounds") == ["rounds=", "rounds=30"]
    assert complete_assignment("method=") == [f"method={name}" for name in METHODS]
    assert complete_assignment("fitted-") == ["fitted-scales=", "fitted-scales=…"]  # nothing can be offered
    assert complete_assignment("fitted-scales=") == []
    assert complete_assignment("no-such-key") == complete_assignment("no-such-key=1") == []
    assert [word.removesuffix("=") for word in complete_assignment("")] == [*defaults()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the program and the scripts that it writes for the shells."""
    folder = tmp_path_factory.mktemp("home")
    program = folder / "florilegium"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        environment = {**_environment(folder), "_FLORILEGIUM_COMPLETE": f"source_{shell}"}
        done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
        (folder / f"completion.{shell}").write_text(done.stdout)
    return folder


def _environment(home: Path) -> dict[str, str]:
    return {
        **os.environ, "PATH": f"{home}:{os.environ['PATH']}", "HOME": str(home), "PYTHONPATH": str(ROOT),
        "TERM": "dumb",
    }  # fmt: skip


START = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
"""Options with which a shell reads none of the user's files."""
SHOW = {
    "bash": r"""source ~/completion.bash; bind -x '"\C-g": echo "[$READLINE_LINE]"'""",
    "zsh": "autoload -U compinit; compinit -u -d ~/dump; source ~/completion.zsh; "
    "show() { print -r -- \"[$BUFFER]\" }; zle -N show; bindkey '^G' show",
    "fish": "source ~/completion.fish; bind \\cg 'echo [(commandline)]'",
}
"""What makes a shell complete, and Control-G show the line as it is."""


@pytest.mark.parametrize("shell", [shell for shell in START if shutil.which(shell)])
def test_a_tabulator_completes(shell: str, home: Path) -> None:
    """Each shell replaces words in its own way; bash splits them at "=" before."""
    process = pexpect.spawn(
        shell, START[shell], env=_environment(home), timeout=30, encoding="utf-8", dimensions=(50, 400)
    )
    try:
        process.sendline(SHOW[shell])
        process.sendline("echo rea''dy")
        process.expect("ready\r")
        for typed, wanted in LINES.items():
            process.send(f"florilegium {typed}\t\x07")
            process.expect(r"\[florilegium ([^\]]*)\]")
            assert process.match is not None
            assert process.match[1] == wanted
            process.send("\x15")  # empties the line
    finally:
        process.close(force=True)
