"""Where a continuous function of one number is zero: Brent's method, without the 0.2 s in which scipy.optimize loads.

No guarantee depends on it: who calls it checks what it returns. Each step is that of ``scipy.optimize.brentq``, to the
last bit, so plans are the same.

Source: R. P. Brent. Algorithms for Minimization Without Derivatives, chapter 4. Prentice-Hall, 1973.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_MOST_STEPS = 100  # bisection alone takes fewer for every tolerance above 1e-30 of the interval


def brent_root(function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float) -> float:
    """A number within ``xtol + rtol |x|`` of a zero x between low and high, at which the signs must differ.

    Raises ValueError where the signs are equal, and ArithmeticError if it does not get so close.
    """
    before, here, across = low, high, 0.0  # the zero lies between here and across
    at_before, at_here, at_across = function(before), function(here), 0.0
    if at_before == 0:
        return before
    if at_here == 0:
        return here
    if (at_before < 0) == (at_here < 0):
        raise ValueError("the function must have different signs at both ends.")
    last_step = step = 0.0
    for _ in range(_MOST_STEPS):
        if at_before != 0 and (at_before < 0) != (at_here < 0):
            across, at_across = before, at_before
            last_step = step = here - before
        if abs(at_across) < abs(at_here):
            before, here, across = here, across, here
            at_before, at_here, at_across = at_here, at_across, at_here
        tolerance = (xtol + rtol * abs(here)) / 2
        half = (across - here) / 2
        if at_here == 0 or abs(half) < tolerance:
            return here
        tried = math.inf
        if abs(last_step) > tolerance and abs(at_here) < abs(at_before):
            if before == across:  # a secant
                tried = -at_here * (here - before) / (at_here - at_before)
            else:  # an inverse parabola
                slope = (at_before - at_here) / (before - here)
                other = (at_across - at_here) / (across - here)
                tried = -at_here * (at_across * other - at_before * slope) / (other * slope * (at_across - at_before))
        if 2 * abs(tried) < min(abs(last_step), 3 * abs(half) - tolerance):
            last_step, step = step, tried
        else:
            last_step = step = half
        before, at_before = here, at_here
        here += step if abs(step) > tolerance else math.copysign(tolerance, half)
        at_here = function(here)
    raise ArithmeticError(f"no zero within {_MOST_STEPS} steps. This should not happen, please report it.")
