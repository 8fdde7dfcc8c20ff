"""A policy and a log in words: what each rule lets out, and what has happened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from florilegium.owner.figures import bits
from florilegium.owner.log import read_log
from florilegium.owner.policy import Policy, ReplyRule

COLUMNS = ("time", "what", "run", "of", "result", "bytes", "norm", "ε")


def rules(policy: Policy) -> list[tuple[str, ...]]:
    """Return what each rule lets out: phase, reduce, norm, noise, ε of one reply's arrays, bits of its numbers."""
    return [_row(rule, policy) for rule in policy.reply]


def _row(rule: ReplyRule, policy: Policy) -> tuple[str, ...]:
    reduce = f"{rule.reduce}, masked" if rule.masked else rule.reduce
    norm, noise = f"{rule.norm:g}" if rule.norm else "no arrays", f"{rule.noise:g}" if rule.noise else "none"
    return rule.phase, reduce, norm, noise, _epsilon(rule, policy.budget.delta), f"{_bits(rule, policy):.0f}"


def _epsilon(rule: ReplyRule, delta: float) -> str:
    if rule.norm and not rule.noise:
        return "no bound"
    if not rule.noise:
        return "-"
    from florilegium.privacy.accounting import Release, total  # takes seconds to import

    return f"{total([Release('gaussian', rule.noise / 2, 1, 1.0)], delta):.3g}"


def _bits(rule: ReplyRule, policy: Policy) -> float:
    """Return the bits that a hostile app can tell with the numbers of a reply, beside its arrays."""
    counts = 0.0 if policy.data.announce or rule.masked else 2 * math.log2(1e9)  # number of examples, and weight
    choice = 2.0  # whether it fails, for lack of budget or else; which weight
    return counts + choice + len(rule.figures) * bits(rule.digits)


def lines(path: Path, run: str = "", *, refused: bool = False) -> list[Sequence[str]]:
    """Return the entries of a log, a row each with what :data:`COLUMNS` lists.

    Args:
        path: the log.
        run: only of this run; "": of all.
        refused: only what was, or would be, refused.
    """
    found: list[Sequence[str]] = []
    for entry in read_log(path):
        if (run and entry.get("run") != run) or (refused and "refuse" not in str(entry["what"])):
            continue
        result = ": ".join(str(entry[name]) for name in ("line", "why", "failure") if entry.get(name)) or "done"
        numbers = [f"{entry[name]:.4g}" if name in entry else "" for name in ("bytes", "norm", "epsilon")]
        of = str(entry.get("of") or entry.get("phase") or "")
        found.append((str(entry["at"]), str(entry["what"]), str(entry.get("run", "")), of, result, *numbers))
    return found
