"""Whether a run may use the device: its app, who started it, when, and the values of all keys of its configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from florilegium.common.settings import Value
from florilegium.owner.allowed import allows, described
from florilegium.owner.denied import DeniedError
from florilegium.owner.policy import Apps, Limits, Policy, open_to_all


def check_app(apps: Apps, content: bytes, signer: Callable[[bytes], str | None]) -> str:
    """Check a bundle before anything of it is read or run; return its hash.

    Args:
        apps: the policy's table ``[apps]``.
        content: the bundle as it came. Its hash is computed here; what a server says of it does not count.
        signer: returns the public key that has signed a bundle; None if nobody has.

    Raises:
        DeniedError: if the owner trusts neither this bundle nor who has signed it.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest in apps.revoked:
        raise DeniedError("apps.revoked", f"app {digest} is revoked")
    if digest in apps.hashes:
        return digest
    key = signer(content) if apps.keys else None
    if key is not None and key in apps.revoked:
        raise DeniedError("apps.revoked", f"app {digest} is signed by key {key}, which is revoked")
    if not apps.any and (key is None or key not in apps.keys):
        by = "nobody" if key is None else f"key {key}, which apps.keys does not list"
        raise DeniedError("apps", f"app {digest} is not in apps.hashes, and is signed by {by}")
    return digest


def check_time(limits: Limits, now: datetime) -> None:
    """Check that something may happen now; ``now`` is local time.

    Raises:
        DeniedError: if the policy has ended, or it is another time of day.
    """
    if now.date() > limits.until:
        raise DeniedError("limits.until", f"the policy has ended on {limits.until}")
    time = now.strftime("%H:%M")
    for hours in limits.hours:
        begin, _, end = hours.partition("-")
        if begin <= time < end or (end <= begin and (time >= begin or time < end)):
            return
    raise DeniedError("limits.hours", f"it is {time}; allowed: {', '.join(limits.hours) or 'no time'}")


def problems(
    policy: Policy, config: Mapping[str, Value], defaults: Mapping[str, Value], account: str | None
) -> Iterator[DeniedError]:
    """Yield what a run's configuration has that the policy does not allow.

    Args:
        policy: the policy.
        config: all keys of the run, flat.
        defaults: the keys of this version of the suite, with their defaults. Another key must be named by the policy.
        account: who has started the run, as the SuperLink says; None: not known yet.
    """
    runs = policy.runs
    if account is not None and not open_to_all(runs.accounts) and account not in runs.accounts:
        allowed = ", ".join(runs.accounts) or "nobody"
        yield DeniedError("runs.accounts", f"'{account}' has started the run; allowed: {allowed}")
    method = config.get("method")
    if method not in runs.methods and not open_to_all(runs.methods):
        yield DeniedError("runs.methods", f"method = '{method}'; allowed: {', '.join(runs.methods) or 'none'}")
    for key, allowed in runs.keys.items():
        found = config.get(key, defaults.get(key))
        if found is None:
            yield DeniedError(f"runs.keys.{key}", f"the run has no key {key}; allowed: {described(allowed)}")
        elif not allows(allowed, found):
            yield DeniedError(f"runs.keys.{key}", f"{key} = {found!r}; allowed: {described(allowed)}")
    named = {"method", *runs.keys, *runs.free}
    for key, found in config.items():
        if key not in named and not (key in defaults and allows(_exactly(defaults[key]), found)):
            known = f"its default {defaults[key]!r}" if key in defaults else "nothing, since it is no key of the suite"
            yield DeniedError("runs.keys", f"{key} = {found!r} is not named; allowed: {known}")


def check_run(policy: Policy, config: Mapping[str, Value], defaults: Mapping[str, Value], account: str) -> None:
    """Raise the first :class:`DeniedError` of :func:`problems`."""
    for problem in problems(policy, config, defaults, account):
        raise problem


def _exactly(value: Value) -> list[Value]:
    """Return what allows one value alone, even if it is the word "any"."""
    return [value]
