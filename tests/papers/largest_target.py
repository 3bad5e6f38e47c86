"""A target checked from its definition: the largest q of a pair of distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def largest_q(z0: Any, z1: Any, target: Any, epsilon: float) -> float:
    """The largest q for which `target` is a q-target with epsilon ([CL23] Definition B.1); 0 if they differ by more.

    With ``Zb = c C + (1-c) Bb`` the common mass c C may take from outcome y at most the largest x for which Z0(y) - x
    and Z1(y) - x differ by a factor e^epsilon at most, ``(e^eps min - max) / (e^eps - 1)``. Taking it from outcomes
    outside of the target always helps, from the target never.
    """
    factor = math.exp(epsilon)
    low, high = np.minimum(z0, z1), np.maximum(z0, z1)
    if (high > factor * low * (1 + 1e-10)).any():
        return 0.0
    common = np.maximum(factor * low - high, 0.0) / math.expm1(epsilon)
    rests = [math.fsum([*z[target], *(z - common)[~target]]) for z in (z0, z1)]
    if max(rests) < 1e-15:  # the worlds are the same
        return 1.0
    return min(float(z[target].sum()) for z in (z0, z1)) / max(rests)
