"""The table of robust rules, from the declarations of their classes."""

from __future__ import annotations

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
