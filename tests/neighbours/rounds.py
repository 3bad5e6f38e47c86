"""How much is tried. SHH_NEIGHBOUR_ROUNDS=20 in the environment tries 20 times as much as the suite does."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

ROUNDS = int(os.environ.get("SHH_NEIGHBOUR_ROUNDS", "1"))


def rounds(*case: object) -> Iterator[random.Random]:
    """A source of choices for each round of a case, the same ones in every run of the tests."""
    for number in range(ROUNDS):
        yield random.Random(f"{case} {number}")
