"""The tables of robust rules and of attacks, from the declarations of their classes."""

from __future__ import annotations

from florilegium.clients.attacks.registry import ATTACKS
from florilegium.strategies.robust.registry import RULES


def rule_table() -> str:
    """Return the table of the suite's own rules in Markdown."""
    rows = ["| `aggregation` | what it computes | paper | fewest updates | weights |", "|---|---|---|---|---|"]
    for name in RULES.own:
        rule = RULES[name]
        each, more = rule.needs
        fewest = "" if not each else f"{each}f" if each > 1 else "f"
        fewest = f"{fewest} + {more}" if fewest else str(more)
        rows.append(f"| `{name}` | {rule.title} | {rule.source} | {fewest} | {'yes' if rule.weighted else 'no'} |")
    return "\n".join(rows) + "\n"


def attack_table() -> str:
    """Return the table of the suite's own attacks in Markdown."""
    rows = ["| `attack` | what attackers return or train on | paper | knows |", "|---|---|---|---|"]
    for name in ATTACKS.own:
        one = ATTACKS[name]
        if name != "none":
            rows.append(f"| `{name}` | {one.title} | {one.source} | {one.usual} |")
    return "\n".join(rows) + "\n"
