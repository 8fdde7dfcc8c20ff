"""The registry of attacks: the suite's own, and what other packages provide."""

from __future__ import annotations

from florilegium.clients.attacks.attack import Attack
from florilegium.common.plugins import Registry, subclass_of
from florilegium.common.settings import Section

_HERE = "florilegium.clients.attacks"

ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    "an attack",
    {
        "none": f"{_HERE}.attack:NoAttack",
        "random": f"{_HERE}.simple:Random",
        "sign-flip": f"{_HERE}.simple:SignFlip",
        "free-rider": f"{_HERE}.simple:FreeRider",
        "label-flip": f"{_HERE}.labels:LabelFlip",
        "backdoor": f"{_HERE}.backdoor:Backdoor",
        "inner-product": f"{_HERE}.colluding:InnerProduct",
        "little-is-enough": f"{_HERE}.colluding:LittleIsEnough",
        "min-max": f"{_HERE}.colluding:MinMax",
        "min-sum": f"{_HERE}.colluding:MinSum",
        "mimic": f"{_HERE}.colluding:Mimic",
        "fang-trimmed": f"{_HERE}.optimised:FangTrimmed",
        "fang-krum": f"{_HERE}.optimised:FangKrum",
        "adaptive": f"{_HERE}.optimised:Adaptive",
    },
    subclass_of(Attack, "Attack"),
)
"""All attacks by name (:mod:`florilegium.common.plugins`)."""


def attack_of(name: str, keys: Section) -> Attack:
    """Return the attack of this name with its own keys; by default if ``keys`` are another's, of settings without any.

    Raises:
        ConfigurationError: if there is none.
    """
    kind = ATTACKS[name]
    return kind(keys if isinstance(keys, kind.keys) else kind.keys())
