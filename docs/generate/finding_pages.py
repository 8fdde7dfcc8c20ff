"""The tables of ``findings/README.md`` and ``docs/surprises.md``, from the heads of the findings' scripts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from florilegium.common.errors import ConfigurationError

PARTS = ("Subject", "What", "Symptom", "Concerns", "Expected", "Seen", "Here")
"""What the head of a script says, each on a line ``# Part: text``; ``Test`` may follow."""
_GROUPS = {
    "Privacy": ("opacus", "dp-accounting", "diffprivlib", "fl4health"),
    "Figures": ("torchmetrics", "lifelines", "scikit-", "statsmodels", "river", "nvflare", "substrafl", "torchsurv"),
    "Splits and data": ("fluke", "pfl", "flwr-datasets", "datasets", "fedartml", "flexible-fl"),
    "Methods and aggregation": ("openfl", "fedlab", "appfl", "p2pfl", "fedml", "fedscale", "flexclash"),
    "Messages": ("flwr", "ray", "httpx", "numpy"),
    "Trained models": ("torch", "onnxruntime", "safetensors", "peft", "xgboost", "transformers"),
}
"""Headings of ``docs/surprises.md``, and how the names of the packages begin that each is about."""


@dataclass(frozen=True)
class Finding:
    """One script of ``findings/``: a behaviour of other packages that surprises."""

    name: str
    says: dict[str, str]
    versions: dict[str, str]
    group: str
    """The heading that the finding stands under."""

    @property
    def packages(self) -> str:
        """The packages that the finding is about, with their versions."""
        return ", ".join(f"{name} {self.versions[name]}" for name in self.says["Subject"].split(", "))

    @property
    def test(self) -> str:
        """The suite's test of the right behaviour, ``path::name``; "" if it has no part in it."""
        return self.says.get("Test", "")


def read_finding(path: Path) -> Finding:
    """Read the head of a script.

    Raises:
        ConfigurationError: if it does not say all that it has to, installs a package of its subject without version,
            or is about one that has no heading.
    """
    text = path.read_text(encoding="utf-8")
    head = text.split("\n. ", 1)[0]
    says = dict(re.findall(r"^# (\w+): (.+)$", head, re.MULTILINE))
    versions = dict(re.findall(r"\s([\w.-]+)==([\w.]+)", text))
    if missing := [part for part in PARTS if part not in says]:
        raise ConfigurationError(f"{path}: the lines at its head lack '# {missing[0]}: …'")
    if unpinned := [name for name in says["Subject"].split(", ") if name not in versions]:
        raise ConfigurationError(f"{path}: '{unpinned[0]}' is installed without a version; write {unpinned[0]}==…")
    first = says["Subject"].partition(",")[0]
    group = next((heading for heading, names in _GROUPS.items() if first.startswith(names)), "")
    if not group:
        raise ConfigurationError(
            f"{path}: docs/generate/finding_pages.py has no heading for '{first}'; add it to _GROUPS"
        )
    return Finding(path.stem, says, versions, group)


def read_findings(root: Path) -> list[Finding]:
    """Return all findings of a checkout, by name."""
    return [read_finding(path) for path in sorted((root / "findings").glob("*.sh"))]


def findings_table(findings: list[Finding]) -> str:
    """Return the table of ``findings/README.md``."""
    rows = [
        f"| [{finding.name}]({finding.name}.sh) | {finding.says['What']} | {finding.packages} | "
        f"{finding.says['Concerns']} | {f'`{finding.test}`' if finding.test else 'no part of the suite'} |"
        for finding in findings
    ]
    head = ["| script | what | version | concerns | the suite's test |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def surprises_tables(findings: list[Finding]) -> str:
    """Return the tables of ``docs/surprises.md``: what one sees, why, and what the suite does, by kind of package."""
    parts = []
    for heading in _GROUPS:
        rows = [
            f"| {finding.says['Symptom']} | {finding.says['What']} | {finding.packages} | {finding.says['Here']} |"
            for finding in findings
            if finding.group == heading
        ]
        if rows:
            head = ["| you see | because | version | in this suite |", "|---|---|---|---|"]
            parts.append("\n".join([f"## {heading}", "", *head, *rows]) + "\n")
    return "\n".join(parts)
