"""Which unit a client may have used: ratios of usual units, by which its mean and deviation differ from the others'."""

from __future__ import annotations

import math
from collections.abc import Mapping

FACTORS: Mapping[str, float] = {
    "a factor of 10": 10.0, "a factor of 100": 100.0, "a factor of 1000": 1000.0,
    "pounds and kilograms": 2.20462, "inches and centimetres": 2.54, "feet and metres": 3.28084,
    "mmHg and kPa": 7.50062, "months and years": 12.0, "minutes and hours": 60.0, "days and years": 365.25,
    "mg/dl and mmol/l of glucose": 18.016, "mg/dl and mmol/l of cholesterol": 38.67,
    "mg/dl and mmol/l of triglycerides": 88.57, "µmol/l and mg/dl of creatinine": 88.40,
    "mg/dl and mmol/l of urea nitrogen": 2.801, "µmol/l and mg/dl of bilirubin": 17.10,
    "µmol/l and mg/dl of uric acid": 59.48, "mg/dl and mmol/l of calcium": 4.008,
    "g/dl and mmol/l of haemoglobin": 1.611,
}  # fmt: skip
"""How many of the first unit are one of the second. Concentrations follow from molar masses in g/mol: 180.16 glucose,
386.7 cholesterol, 885.7 triglycerides, 113.12 creatinine, 28.01 nitrogen of urea, 584.7 bilirubin, 168.11 uric acid,
40.08 calcium, 16,114 haemoglobin for each iron."""
FAHRENHEIT = "°F and °C"
_CLOSE, _AS_WIDE = 0.15, 0.5
"""How far logarithms of means and of deviations may be from those that a unit explains."""

Moments = tuple[float, float]
"""Mean and standard deviation."""


def other_unit(own: Moments, others: Moments) -> str:
    """Return the two units that best explain how a client's mean and deviation differ from the others'; "": none do."""
    distances = [
        (distance, name)
        for name, factor in FACTORS.items()
        for ratio in (factor, 1 / factor)
        if (distance := _distance(own, (ratio * others[0], ratio * others[1]))) is not None
    ]
    for one, two in ((own, others), (others, own)):  # one in Fahrenheit
        distance = _distance(one, (1.8 * two[0] + 32, 1.8 * two[1]))
        distances += [(distance, FAHRENHEIT)] if distance is not None else []
    return min(distances)[1] if distances else ""


def _distance(found: Moments, explained: Moments) -> float | None:
    """Return how far moments are from those that a unit explains; None if they are too far."""
    (mean, spread), (other, wide) = found, explained
    if mean * other <= 0 or spread <= 0 or wide <= 0:
        return None
    shift, stretch = abs(math.log(mean / other)), abs(math.log(spread / wide))
    return shift + stretch if shift < _CLOSE and stretch < _AS_WIDE else None
