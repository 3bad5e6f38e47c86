"""A small threshold monitor, and its exact probabilities."""

from __future__ import annotations

import math
import random

from dp_transforms.accounting.discrete_laplace_law import probability

SMALL = {"wide_epsilon": 0.05, "narrow_epsilon": 0.5, "cap": 2}


def key(seed: int) -> bytes:
    """A noise key of 32 bytes."""
    return random.Random(seed).randbytes(32)


def top_probability(margin: int) -> float:
    """``Pr[W + min(V, cap) >= margin]``, summed over all V."""
    wide, narrow, cap = SMALL["wide_epsilon"], SMALL["narrow_epsilon"], SMALL["cap"]
    a = math.exp(-wide)

    def above(m: int) -> float:
        return a**m / (1 + a) if m >= 1 else 1 - a ** (1 - m) / (1 + a)

    return math.fsum(probability(narrow, v) * above(margin - min(v, cap)) for v in range(-160, 161))
