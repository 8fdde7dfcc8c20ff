"""The commands of the documentation: each is accepted, and is carried out by a test or has a reason not to be."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.cli.apps import WRITE, AppCommands
from florilegium.apps.runs.experiment import pick, read_assignments, read_layers, read_recipe
from florilegium.apps.settings.configuration import complete, defaults, parse
from florilegium.apps.sweeps.sweep import runs_of
from florilegium.common.errors import ConfigurationError
from tests.processes import ROOT
from tests.support import CACHE

DOCS = ROOT / "docs"
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
COMMANDS = typer.main.get_command(cli)
THEIRS = ("package-keys", "mine.", "slow-head.")
"""Keys in examples that are not the suite's own."""
ELSEWHERE = {
    "docs/commands.md": "examples of the help texts: tests/apps/cli/test_help.py",
    "docs/deployment.md": "carried out with free ports: tests/apps/devices (test_deployment.py, test_device.py)",
    "docs/owner.md": "carried out with folders of the tests' own: tests/owner, tests/apps/devices/test_owner.py",
    "docs/own.md": "carried out word for word: tests/apps/origins/test_package.py",
    "docs/attacks.md": "attack runs of a certain kind: tests/research/attacks/test_audit.py",
    "docs/results/": "made the page's numbers in minutes to hours; the recipe is read, the keys are checked",
}
"""Pages whose commands are not carried out here, and why; of methods' pages see :data:`NOT_HERE`."""
NOT_HERE = {
    r"(sweep|tune|board|pareto|fidelity) ": "takes hours; the recipe is read, the keys are checked",
    r"run (ppfe|pefll|fedgtst|feddp|flowdup|mdm|privacy)-?\S*": "a paper's experiment; the recipe is read",
    r"run --set dataset=(mnist|hub:)|schema hub:": "reads the hub: tests/partitions/sources/test_inference.py",
    r"compare .*--tuned|compare .*--recipe": "needs a tuning of hours: tests/apps/tuning/test_tuning.py",
    r"run --set tracker|track ": "needs a server or an account: tests/apps/trackers/test_following.py",
    r"(census|pictures|speech) ": "needs pictures or sounds: tests/partitions/sources/test_picture_folders.py",
    r"(transfer|hyperparameters|embed|recovery|heterogeneity|descriptors|norms) ": "of such runs: tests/research",
    r"audit ": "attacks such a run: tests/research/attacks/test_audit.py",
    r"ui( |$)": "serves until Ctrl-C: tests/ui/test_serving.py",
    r"superlink ": "serves until it is stopped: tests/apps/devices/test_deployment.py",
    r"split ": "needs a folder of that suite: tests/partitions/sources/test_foreign_splits.py",
    r"run fed-mine/": "needs the package to be installed: tests/apps/origins/test_package.py",
    r"run --set dataset=/data/(instructions|entities)": "needs a model to fetch: tests/partitions/sources",
    r"run --set dataset=banking77": "needs a folder of models: tests/apps/runs/test_recipes.py",
    r"run RECIPE": "needs a cluster of several machines: tests/cluster/test_lost_nodes.py",
    r"cluster ": "for schedulers: tests/cluster/test_launchers.py",
}
"""Commands that are not carried out here, by how they begin, and why."""
OTHERS = {
    r"make (install|run)|(uv )?pip install|pip wheel": "downloads packages; test_package.py installs a wheel",
    r"uv build": "as a wheel is built in tests/apps/origins/test_package.py",
    r"make (test|bench|docs|pictures)": "of a checkout; the site is built in tests/test_docs.py",
    r"python -m (tests\.(fingerprints|cluster\.campaign)|benchmarks)": "takes minutes on an idle machine",
    r"flower-superlink|flwr run|flwr supernode": "carried out with free ports: tests/apps/devices/test_deployment.py",
    r"ssh-keygen|deploy/certificates": "carried out in tests/site.py",
    r"mkdir|cat|cp|export|cd": "of the shell",
    r"ray start|sbatch|kubectl": "needs several machines",
}
"""Commands of other programs, by how they begin, and where they are carried out, or why nowhere."""
PROGRAMS = (
    r"flwr|flower-\w+|make|sbatch|kubectl|pip|uv|python|pytest|ray|docker|systemctl|git|curl|ssh\S*|mkdir|cat|cp|export|cd"
    r"|deploy/\S+"
)


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each line of a text that could be typed and begins with ``florilegium``."""
    for line in re.sub(r" *\\\n *", " ", text).splitlines():
        if re.match(r"(    |)florilegium [a-z](?!.*\[OPTIONS\])", line):  # commands.md also shows what is accepted
            yield shlex.split(re.sub(r" > \S+$", "", line), comments=True)[1:]  # without where its output goes


def _mentioned(text: str) -> Iterator[list[str]]:
    """Yield the words of the commands in sentences, which may lack arguments."""
    for command in re.findall(r"(?<!`)`florilegium ([a-z][^`]*)`", text):
        yield shlex.split(command)


def _found(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that ``words`` begin with, and the rest of them; a group if there is no such command."""
    command: click.Command = COMMANDS
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    if isinstance(command, AppCommands) and words:
        command = command.commands[WRITE]  # what `florilegium app FOLDER` is short for
    return command, words


def _wrong(words: list[str], *, whole: bool = True) -> str:
    """Return what is wrong with a command: its name, an option, a key of ``--set``, or if ``whole`` what it lacks."""
    command, words = _found(words)
    if isinstance(command, click.Group):
        return f"no command {' '.join(words[:1])}" if words else ""
    options = {name for parameter in command.params for name in parameter.opts}
    passes_on = command.context_settings.get("ignore_unknown_options", False)  # to a program of Flower's
    for place, word in enumerate(words, 1):
        if re.match(r"--[a-z]", word) and not passes_on and word.partition("=")[0] not in options:
            return f"no option {word}"
        key = "".join(words[place : place + 1]).partition("=")[0]
        if word == "--set" and key not in defaults() and not key.startswith(THEIRS):
            return f"no key {key}"
    if whole and not passes_on:
        try:
            command.make_context(command.name, list(words))
        except click.UsageError as error:
            return error.format_message()
    return ""


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_commands_exist(page: Path) -> None:
    """Every command that a page shows or mentions, with its options, keys and arguments."""
    text = page.read_text(encoding="utf-8")
    wrong = [(" ".join(words), _wrong(words)) for words in _commands(text)]
    wrong += [(" ".join(words), _wrong(words, whole=False)) for words in _mentioned(text)]
    assert not [entry for entry in wrong if entry[1]]


def _try(words: list[str]) -> None:
    """Check all that is known without data of a command that names a recipe of the suite.

    Raises:
        ConfigurationError: if the command would end with it.
    """
    command, arguments = words[0], [word for word in words[1:] if not word.startswith("-")]
    if command not in ("run", "sweep", "tune", "pareto") or not arguments:
        return
    recipe = arguments[0]
    if not re.fullmatch(r"[a-z0-9.:-]+", recipe) or recipe.endswith(".toml"):  # a place for a name, or a file
        return
    assignments = [value for word, value in pairwise(words) if word == "--set"]
    given = read_assignments([entry for entry in assignments if not re.search(r"RUN|…|=(/|~|\$|\./)", entry)])
    if command == "sweep":
        runs_of(recipe, arguments[1], given)
    elif command == "tune":
        pick(arguments[1], read_layers(recipe).tune, recipe, "tuning")
    else:
        parse(complete({**read_recipe(recipe), **given}))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_commands_with_recipes_are_accepted(page: Path) -> None:
    """Recipes, variants, sweeps, tunings and keys of the commands on a page fit together."""
    for words in _commands(page.read_text(encoding="utf-8")):
        _try(words)


def test_wrong_commands_are_found() -> None:
    text = """
    florilegium rum
    florilegium run --sets a=1      # with a comment
    florilegium run \\
      --set metod=fedavg
    florilegium export RUN          # of a client
    florilegium runs all of them
"""
    assert [_wrong(words) for words in _commands(text)] == [
        "no command rum", "no option --sets", "no key metod", "Missing option '--client'.",
        "Got unexpected extra arguments (all of them)",
    ]  # fmt: skip
    assert [_wrong(words, whole=False) for words in _mentioned("`florilegium rum`, `florilegium export`")] == [
        "no command rum", "",
    ]  # fmt: skip
    for words, wrong in (
        ("run ppfe-cifar10-s2:nothing", "no variant 'nothing'"),
        ("sweep ppfe-cifar10-s2 table-0", "no sweep 'table-0'"),
        ("run ppfe-cifar10-s2 --set rounds=-1", "rounds"),
    ):
        with pytest.raises(ConfigurationError, match=wrong):
            _try(words.split())


def _here(page: Path) -> list[list[str]]:
    """Return the commands of a page that are carried out here."""
    name = page.relative_to(ROOT).as_posix()
    if any(name.startswith(start) for start in ELSEWHERE):
        return []
    return [
        words for words in _commands(page.read_text(encoding="utf-8"))
        if not any(re.match(start, " ".join(words)) for start in NOT_HERE)
    ]  # fmt: skip


def test_commands_carried_out_here_stay_in_their_folder() -> None:
    assert not [words for page in TEXTS for words in _here(page) if any(re.match(r"/|\S+=/", word) for word in words)]


def test_reasons_are_needed_and_name_tests_that_exist() -> None:
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in TEXTS}
    for start in ELSEWHERE:
        assert any(name.startswith(start) and list(_commands(text)) for name, text in texts.items()), start
    shown = [" ".join(words) for name, text in texts.items() for words in _commands(text)]
    for start in NOT_HERE:
        assert any(re.match(start, command) for command in shown), start
    for reason in (*ELSEWHERE.values(), *NOT_HERE.values()):
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
            assert (ROOT / path).exists(), path


def test_commands_of_other_programs_have_a_reason() -> None:
    shown = [
        line.strip() for page in TEXTS
        for line in page.read_text(encoding="utf-8").splitlines() if re.match(rf"    ({PROGRAMS}) \S", line)
    ]  # fmt: skip
    assert len(shown) > 20
    assert not [line for line in shown if not any(re.match(start, line) for start in OTHERS)]
    for start, reason in OTHERS.items():
        assert any(re.match(start, line) for line in shown), start
        for path in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / path).exists(), path


@pytest.mark.simulation
@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in TEXTS if _here(page)], ids=lambda page: page.stem)
def test_commands_are_carried_out(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a page one after the other, in a folder with data of one's own; two rounds unless they say more.

    ``RUN`` stands for the newest run, ``…`` for a command to which keys are added.
    """
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".florilegium").mkdir(parents=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    (home / ".florilegium" / "cache").symlink_to(CACHE)
    (work / "own").mkdir(parents=True)
    for client in ("alice", "bob"):
        rows = "".join(f"{number},{number % 7},{number % 2}\n" for number in range(40))
        (work / "own" / f"{client}.csv").write_text(f"a,b,label\n{rows}")
    (work / "patients").mkdir()
    rows = "".join(f"{number},{number % 3},{'ab'[number % 2]},{'ns'[number // 20]}\n" for number in range(40))
    (work / "patients" / "train.csv").write_text(f"age,dose,outcome,hospital\n{rows}")
    (work / "follow-up").mkdir()
    rows = "".join(
        f"{number + 1},{number % 2},{'fm'[number % 3 % 2]},{number % 5},{'ns'[number // 20]}\n" for number in range(40)
    )
    (work / "follow-up" / "train.csv").write_text(f"days,died,sex,dose,hospital\n{rows}")
    (work / "split.json").write_text(json.dumps({"alice": {"train": [*range(40)], "test": [40, 41]}}))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    commands = _here(page)
    if any("RUN" in words for words in commands):
        commands = [["run"], *commands]
    runs: list[str] = []
    for words in commands:
        words = [word for word in words if word != "…"]
        words = [word if word != "RUN" else runs[-1] for word in words]
        if words[0] in ("run", "compare") and not any(word.startswith("rounds=") for word in words):
            words += ["--set", "rounds=2"]
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, f"{' '.join(words)}: {done.output}{done.exception}"
        if words[0] == "run":
            runs.append(done.stdout.splitlines()[-1])
