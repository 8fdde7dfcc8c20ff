"""A refusal: which line of the owner's policy does not allow something, and why."""

from __future__ import annotations

from florilegium.common.errors import RefusedError


class DeniedError(RefusedError):
    """The owner's policy does not allow what a server or an app wants.

    Args:
        line: the line of the policy, such as ``runs.keys.rounds``.
        why: what was found and what is allowed. It is written to the owner's log, and may quote what an app has sent.
    """

    def __init__(self, line: str, why: str) -> None:
        super().__init__(f"policy, {line}: {why}")
        self.line, self.why = line, why
