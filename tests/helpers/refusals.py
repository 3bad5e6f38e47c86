"""Arguments that are refused: what is no number of a kind, and a test that tries them one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

SAID = (
    r"must|cannot be (outcomes|used)|too (wide|small)|Raise epsilon|lower hits|coarser grid|may be at most|at least one"
    r"|(one length|fewer hits|again and again|Use a larger scale|leave nothing of a purse|no order pays|the mass of)"
)
NAN, INFINITE = math.nan, math.inf
NO_NUMBER = [NAN, INFINITE, -INFINITE, True, "1"]
POSITIVE = [0.0, -1.0, *NO_NUMBER]
NOT_NEGATIVE = [-1e-9, None, Decimal(1), *NO_NUMBER]
FRACTION = [0.0, 1.0, -0.1, 2.0, *NO_NUMBER]
DELTA = [-1e-9, 1.0, *NO_NUMBER]
WHOLE = [0, -1, 1.5, 2.0, 2**63, *NO_NUMBER]
COUNT = [-1, *WHOLE[2:]]
UNITS = [0, -1, 1.5, True]
THRESHOLD = [2.0**40 + 1, -(2.0**41), np.bool_(True), 1j, *NO_NUMBER]
GRID = [2**20 + 1, *WHOLE]

Case = tuple[Callable[..., Any], dict[str, Any], dict[str, list[Any]]]
"""What is called, with which arguments, and what each of them may not be."""


def name_of(call: Callable[..., Any]) -> str:
    call = getattr(call, "func", call)
    return getattr(call, "__qualname__", type(call).__name__)


def assert_refused(call: Callable[..., Any], good: dict[str, Any], wrong: dict[str, list[Any]]) -> None:
    call(**good)
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=SAID):
                call(**{**good, name: value})
