"""The least noise of target charging for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable

from dp_transforms.accounting.composition import smallest_safe_argument
from dp_transforms.accounting.noise_parameters import noise_error
from dp_transforms.mechanisms.discrete_laplace_law import MAX_EPSILON, MIN_EPSILON


def solve_target_charging(delta_at: Callable[[float], float], hits: int, epsilon: float, delta: float) -> float:
    """The largest epsilon_per_query, rounded down to six digits, with ``delta_at(epsilon_per_query) <= delta``."""
    # A first guess from advanced composition of about as many calls as such an interaction makes.
    calls = 2 * (hits + 3 * math.sqrt(hits) + 4)
    spread = math.sqrt(2 * calls * math.log(1 / delta))
    # calls / (sqrt(spread^2 + 2 calls epsilon) - spread), with nothing that cancels where epsilon is tiny.
    guess = (math.sqrt(spread**2 + 2 * calls * epsilon) + spread) / (2 * epsilon)
    limits = {"lowest": 1 / MAX_EPSILON, "highest": 1 / MIN_EPSILON}
    try:
        noise_scale = smallest_safe_argument(
            lambda scale: delta_at(1 / scale), delta, guess=guess, tolerance=1e-6, **limits
        )
    except ValueError:
        raise noise_error(epsilon, hits, 1 / MIN_EPSILON) from None
    unit = 10.0 ** (math.floor(math.log10(1 / noise_scale)) - 5)
    steps = math.floor(1 / noise_scale / unit)
    while True:
        # Through text, so that the plan shows the six digits. A margin, so that another machine's libm agrees.
        epsilon_per_query = float(f"{steps * unit:.6g}")
        if delta_at(epsilon_per_query) * (1 + 1e-9) <= delta:
            return epsilon_per_query
        steps -= 1
