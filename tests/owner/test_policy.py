"""A policy: only its owner may write it, every line is checked, and what it does not name is denied."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.settings.configuration import defaults
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import Value
from florilegium.owner.admission import check_app, check_time, problems
from florilegium.owner.allowed import allows, described, problem
from florilegium.owner.denied import DeniedError
from florilegium.owner.home import open_home
from florilegium.owner.policy import Apps, read_policy
from tests.owner.made import FAB, HEAD, TEST, TRAIN, made


def test_a_policy_is_read(tmp_path: Path) -> None:
    policy = made(tmp_path / "owner").policy()
    assert (policy.mode, policy.strict, policy.runs.accounts) == ("enforce", False, ["ann"])
    assert [(rule.phase, rule.reduce, rule.norm) for rule in policy.reply] == [
        ("train", "delta", 2.0),
        ("test", "sum", 0),
    ]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("version = 1", "version = 2"), "version: the policy has version 2; this version of Florilegium reads 1"),
        (("rows = 20", "rows = 0"), "data.rows"),
        (("rows = 20", "rows = 20\nrow = 3"), "data.row: there is no such line"),
        (("rounds = { max = 50 }", "rounds = { most = 50 }"), "not 'most'"),
        (("rounds = { max = 50 }", "rounds = { min = 3, max = 2 }"), "above"),
        (("rounds = { max = 50 }", "method = 'fedavg'"), "runs.methods"),
        (("until = 2026-12-31", 'until = "soon"'), "limits.until"),
        (("08:00-18:00", "8-18"), "limits.hours"),
        (("any = true", 'hashes = ["abc"]'), "64 hexadecimal digits"),
        (("norm = 2.0", "norm = nan"), "norm"),
        (("norm = 2.0", "noise = 1.0"), "noise needs a finite norm"),
        (("norm = 2.0", "norm = inf\nnoise = 1.0"), "noise needs a finite norm"),
        (("norm = 2.0", "norm = 2.0\nnoise = 1.0\nmasked = true"), "cannot add noise to a masked"),
        (('phase = "test"\nreduce = "sum"', 'phase = "train"\nreduce = "delta"'), "already a rule"),
        (("[apps]", "[apps"), "is not TOML"),
        (("[data]\nrows = 20\n", ""), "data: Field required"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, change: tuple[str, str], found: str) -> None:
    text = HEAD + TRAIN + TEST
    assert change[0] in text
    home = made(tmp_path / "owner", text.replace(*change))
    with pytest.raises(DataError, match=re.escape(found)):
        home.policy()


def test_only_the_owner_may_write_it(tmp_path: Path) -> None:
    home = made(tmp_path / "owner")
    for mode in (0o620, 0o602, 0o666):
        home.policy_file.chmod(mode)
        with pytest.raises(DataError, match="chmod go-w"):
            read_policy(home.policy_file)
    home.policy_file.chmod(0o644)
    read_policy(home.policy_file)
    home.folder.chmod(0o755)
    with pytest.raises(DataError, match="chmod 700"):
        open_home(home.folder)
    home.folder.chmod(0o700)
    tmp_path.chmod(0o777)  # anybody could put another folder in its place
    with pytest.raises(DataError, match="a folder above"):
        open_home(home.folder)
    with pytest.raises(DataError, match="policy init"):
        open_home(tmp_path / "none")


@pytest.mark.parametrize(
    ("allowed", "yes", "no"),
    [
        ({"max": 50}, [50, -3, 0.5], [51, "50", True, float("nan")]),
        ({"min": 1, "max": 2}, [1, 1.5, 2], [0, 3]),
        ("example", ["example"], ["Example", 1]),
        (True, [True], [1, "true", False]),
        (1, [1, 1.0], [True, 2]),
        ([1, 2], [1, 2], [3]),
        ("any", ["any", 5, False], []),
        (["any"], ["any"], [5]),
    ],
)
def test_values_are_allowed(allowed: object, yes: list[Value], no: list[Value]) -> None:
    assert not problem(allowed)
    assert [allows(allowed, one) for one in yes + no] == [True] * len(yes) + [False] * len(no)
    assert described(allowed)


@pytest.mark.parametrize("allowed", [{}, {"max": "9"}, {"max": True}, [], [[1]], None, {"max": float("nan")}])
def test_nonsense_is_no_range(allowed: object) -> None:
    assert problem(allowed)


def test_what_is_not_named_is_denied(tmp_path: Path) -> None:
    policy = made(tmp_path / "owner").policy()

    def lines(**config: Value) -> list[str]:
        given = {"method": "fedavg", "rounds": 50, **{key.replace("_", "-"): value for key, value in config.items()}}
        return [one.line for one in problems(policy, {**defaults(), **given}, defaults(), "ann")]

    assert lines() == []
    assert lines(num_clients=7) == []
    assert lines(method="mdm") == ["runs.methods"]
    assert lines(rounds=51) == ["runs.keys.rounds"]
    assert lines(learning_rate=0.7) == ["runs.keys"]
    assert lines(rounds="many", secure_aggregation=True) == ["runs.keys.rounds", "runs.keys"]
    assert lines(new_key="any") == ["runs.keys"]
    assert [one.line for one in problems(policy, {"method": "fedavg", "rounds": 1}, {}, "eve")] == [
        "runs.accounts", "runs.keys.num-clients"
    ]  # fmt: skip


def test_apps_are_known_by_their_own_hash(tmp_path: Path) -> None:
    import hashlib

    digest, key = hashlib.sha256(FAB).hexdigest(), "b" * 64
    assert check_app(Apps(hashes=[digest]), FAB, lambda content: None) == digest
    assert check_app(Apps(keys=[key]), FAB, lambda content: key) == digest
    assert check_app(Apps(any=True), FAB, lambda content: None) == digest
    for apps, signer in (
        (Apps(), key), (Apps(hashes=["0" * 64]), None), (Apps(keys=[key]), None), (Apps(keys=[key]), "c" * 64),
    ):  # fmt: skip
        with pytest.raises(DeniedError, match="apps"):
            check_app(apps, FAB, lambda content, signer=signer: signer)  # type: ignore[misc]
    for revoked in (
        Apps(hashes=[digest], revoked=[digest]), Apps(keys=[key], revoked=[key]), Apps(any=True, revoked=[digest]),
        Apps(any=True, keys=[key], revoked=[key]),
    ):  # fmt: skip
        with pytest.raises(DeniedError, match="revoked"):
            check_app(revoked, FAB, lambda content: key)


@pytest.mark.parametrize(
    ("hours", "time", "allowed"),
    [
        (["08:00-18:00"], "08:00", True), (["08:00-18:00"], "17:59", True), (["08:00-18:00"], "18:00", False),
        (["18:00-06:00"], "23:00", True), (["18:00-06:00"], "05:59", True), (["18:00-06:00"], "12:00", False),
        (["00:00-24:00"], "23:59", True), ([], "12:00", False), (["01:00-02:00", "11:00-13:00"], "12:00", True),
    ],
)  # fmt: skip
def test_hours(tmp_path: Path, hours: list[str], time: str, allowed: bool) -> None:
    limits = made(tmp_path / "owner").policy().limits.model_copy(update={"hours": hours})
    now = datetime.fromisoformat(f"2026-12-31T{time}")
    if allowed:
        check_time(limits, now)
    else:
        with pytest.raises(DeniedError, match=r"limits\.hours"):
            check_time(limits, now)
    with pytest.raises(DeniedError, match=r"limits\.until"):
        check_time(limits, now.replace(year=2027, month=1, day=1))


INIT = ["--app", "a" * 64, "--method", "fedavg", "--rounds", "50", "--epsilon", "3", "--rows", "50", "--columns", "any",
        "--norm", "10", "--noise", "1", "--megabytes", "100", "--until", "2027-12-31"]  # fmt: skip


def _called(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["device", "policy", *map(str, words)])
    if isinstance(done.exception, Exception) and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_the_commands_write_check_and_explain(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    assert _called("init", folder, *INIT)[0] == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "policy.toml").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="already"):
        _called("init", folder, *INIT)
    assert "train\tdelta\t10\t1" in _called("check", folder)[1]
    code, said = _called("explain", folder, "--set", "rounds=100", "--set", "privacy.unit=example")
    assert (code, "rounds = 100; allowed: at most 50" in said, "privacy.unit" in said) == (1, True, False)
    recipe = tmp_path / "run.toml"
    recipe.write_text('method = "fedavg"\nrounds = 5\n"privacy.unit" = "example"\n"privacy.epsilon" = 2.0\n')
    assert _called("explain", folder, recipe) == (0, "the policy allows this configuration\n")
    (folder / "policy.toml").chmod(0o666)
    with pytest.raises(DataError, match="others can change it"):
        _called("check", folder)


def test_questions_are_asked(tmp_path: Path) -> None:
    answers = "\n".join(INIT[1::2]) + "\n"
    done = CliRunner().invoke(cli, ["device", "policy", "init", str(tmp_path / "asked")], input=answers)
    assert done.exit_code == 0, done.output
    assert done.output.count("?") + done.output.count(":") >= len(INIT) // 2
    _called("init", tmp_path / "told", *INIT)
    texts = [(tmp_path / name / "policy.toml").read_text() for name in ("asked", "told")]
    assert texts[0] == texts[1]
