"""Where the searches of the accountants begin, which steps they take, and what they pass on.

What they find is tested elsewhere, and is the same from a worse beginning, after many more evaluations: each of these
is a pass over a lattice of up to a million entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import charging_bounds
from benchmarks.charging_bounds import static_adversary_epsilon
from dp_transforms.accounting import charging_game, composition, mixed_charging, release_modes, target_charging
from dp_transforms.accounting import kms21_accountant as monitor
from dp_transforms.accounting.calibration import (
    DEFAULT_FALSE_REPORTS,
    choose_for_known_domain,
    choose_for_open_domain,
    hash_delta,
)
from dp_transforms.accounting.charging_game import GameAccountant, charging_game_deltas
from dp_transforms.accounting.composition import (
    ROUNDING,
    OptimalComposition,
    _polish,
    advanced_composition_epsilon,
    smallest_safe_argument,
)
from dp_transforms.accounting.mixed_charging import CallKind, MixedChargingAccountant, largest_lam, largest_probability
from dp_transforms.accounting.release_modes import (
    NoiseParameters,
    _chord,
    epsilon_after_each_hit,
    smallest_safe_threshold,
    solve_target_charging,
)
from dp_transforms.accounting.target_charging import ClosedFormAccountant, ExactTailAccountant
from dp_transforms.mechanisms.discrete_laplace_law import MAX_EPSILON, MIN_EPSILON

Given = dict[str, Any]


def distinct(values: list[float]) -> list[float]:
    """In the order in which they were first asked for."""
    return list(dict.fromkeys(values))


def asked(guess: float, root: float, lowest: float = 0.0, highest: float = math.inf, **more: float) -> list[float]:
    """Where the solver evaluates a delta that falls below 0.01 at `root`."""
    seen = []

    def delta_at(x: float) -> float:
        seen.append(x)
        return math.exp(-x * -math.log(0.01) / root)

    found = smallest_safe_argument(delta_at, 0.01, guess=guess, lowest=lowest, highest=highest, **more)
    assert found == pytest.approx(max(root, lowest), rel=3e-7)
    return distinct(seen)


def test_the_solver_takes_growing_steps_from_its_guess() -> None:
    steps = [1.1, 1.21, 1.4641, 1.4641**2]
    up = [3.0 * math.prod(steps[:count]) for count in range(5)]
    assert asked(3.0, 7.5)[:4] == pytest.approx(up[:4], rel=1e-14)
    down = [3.0 / math.prod(steps[:count]) for count in range(5)]
    assert asked(3.0, 1.4)[:4] == pytest.approx(down[:4], rel=1e-14)
    assert asked(3.0, 7.5, lowest=5.0)[0] == 5.0
    assert asked(9.0, 2.5, highest=4.0)[0] == 4.0
    assert max(asked(3.0, 7.5, highest=8.0)) == 8.0
    assert asked(0.0, 1e-8)[:3] == pytest.approx([0.0, 1e-9, 1.21e-9], rel=1e-12)
    assert asked(2e-9, 1.0, lowest=0.0)[0] == 2e-9
    assert min(asked(3.0, 1.4, lowest=1.2)) == 1.2


def test_the_solver_goes_to_the_lowest_rather_than_to_less_than_a_billionth() -> None:
    seen = []
    smallest_safe_argument(lambda x: seen.append(x) or 0.0, 0.1, guess=1.05e-9, lowest=0.0, highest=1.0)  # type: ignore[func-returns-value]
    assert distinct(seen) == [1.05e-9, 0.0]


@pytest.mark.parametrize("tolerance", [1e-7, 1e-4])
def test_a_root_that_is_not_safe_moves_up_in_steps_that_double(
    monkeypatch: pytest.MonkeyPatch, tolerance: float
) -> None:
    given: list[Given] = []

    def solve(function: object, low: float, high: float, **more: float) -> float:
        given.append({"low": low, "high": high, **more})
        return 2.0

    monkeypatch.setattr("scipy.optimize.brentq", solve)
    seen: list[float] = []

    def safe(x: float) -> bool:
        seen.append(x)
        return len(seen) == 4

    root = 2.0 * (1 + tolerance) * (1 + 2 * tolerance) * (1 + 4 * tolerance)
    assert _polish(lambda x: x, safe, 1.0, 3.0, tolerance) == pytest.approx(root, rel=1e-15)
    assert seen == pytest.approx(
        [2.0, 2.0 * (1 + tolerance), 2.0 * (1 + tolerance) * (1 + 2 * tolerance), root], rel=1e-15
    )
    assert given == [{"low": 1.0, "high": 3.0, "xtol": 3.0 * tolerance, "rtol": 4 * tolerance}]
    assert _polish(lambda x: x, lambda x: False, 1.0, 2.0 + tolerance, tolerance) == 2.0 + tolerance, "never above"
    assert _polish(lambda x: x, lambda x: False, 1.0, 2.0, tolerance) == 2.0


def noted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[tuple[tuple[Any, ...], Given]]:
    """What a function of a module is called with; it is called all the same."""
    calls: list[tuple[tuple[Any, ...], Given]] = []
    real = getattr(module, name)

    def note(*given: Any, **more: Any) -> Any:
        calls.append((given, more))
        return real(*given, **more)

    monkeypatch.setattr(module, name, note)
    return calls


def limits_of(calls: list[tuple[tuple[Any, ...], Given]]) -> tuple[float, Given]:
    """What a solver was asked for: delta, and by name where to begin and within what limits."""
    ((_, delta), more), *_ = calls
    return delta, more


EACH, Q, HITS, DELTA = 0.2, 0.3, 4, 1e-6


def advanced(calls: float) -> float:
    return advanced_composition_epsilon(EACH, math.ceil(calls), DELTA)


@pytest.mark.parametrize(
    ("module", "solve", "guess"),
    [
        (
            charging_game,
            lambda: GameAccountant(EACH, Q, HITS).epsilon(DELTA),
            lambda: 0.9 * advanced((HITS + 2 * math.sqrt(HITS)) / Q),
        ),
        (
            charging_game,
            lambda: GameAccountant(EACH, Q, HITS, participations=500).epsilon(DELTA),
            lambda: 0.9 * advanced((HITS + 2 * math.sqrt(HITS)) / Q),
        ),
        (charging_game, lambda: GameAccountant(EACH, Q, HITS, 9).epsilon(DELTA), lambda: 0.9 * advanced(9)),
        (
            target_charging,
            lambda: ExactTailAccountant(EACH, Q, HITS).epsilon(DELTA),
            lambda: 0.6 * ClosedFormAccountant(EACH, Q, HITS).epsilon(DELTA),
        ),
        (charging_bounds, lambda: static_adversary_epsilon(EACH, Q, HITS, DELTA), lambda: advanced(HITS / Q)),
    ],
)
def test_where_the_search_for_an_epsilon_begins(
    monkeypatch: pytest.MonkeyPatch, module: Any, solve: Callable[[], float], guess: Callable[[], float]
) -> None:
    calls = noted(monkeypatch, module, "smallest_safe_argument")
    assert solve() > 0
    begins, limits = pytest.approx(guess(), rel=1e-14), {"lowest": 0.0, "highest": math.inf}
    assert limits_of(calls) == (DELTA, {"guess": begins, **limits})


def test_where_the_search_for_an_epsilon_of_composition_begins_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = noted(monkeypatch, composition, "smallest_safe_argument")
    OptimalComposition(EACH, 30).epsilon(DELTA)
    guess = advanced_composition_epsilon(EACH, 30, DELTA)
    assert limits_of(calls) == (DELTA, {"guess": guess, "lowest": 0.0, "highest": 30 * EACH * (1 + 1e-9)})


@pytest.mark.parametrize(("hits", "epsilon", "delta"), [(1, 0.5, 1e-6), (9, 2.0, 1e-9), (100, 8.0, 1e-3)])
def test_where_the_search_for_the_noise_of_a_plan_begins(
    monkeypatch: pytest.MonkeyPatch, hits: int, epsilon: float, delta: float
) -> None:
    """At the scale that advanced composition of twice the likely calls needs: found here by a root, not by its form."""
    given = noted(monkeypatch, release_modes, "smallest_safe_argument")
    solve_target_charging(lambda each: min(1.0, each**8), hits, epsilon, delta)
    found_delta, more = limits_of(given)
    calls = 2 * (hits + 3 * math.sqrt(hits) + 4)
    each = 1 / more.pop("guess")
    assert calls * each**2 / 2 + each * math.sqrt(2 * calls * math.log(1 / delta)) == pytest.approx(epsilon, rel=1e-9)
    assert found_delta == delta
    assert more == {"tolerance": 1e-6, "lowest": 1 / MAX_EPSILON, "highest": 1 / MIN_EPSILON}


def test_the_noise_of_a_plan_is_the_largest_of_six_digits() -> None:
    for root in (0.123456789, 0.00765432199):
        found = solve_target_charging(lambda each, root=root: 1e-7 if each <= root else 1.0, 3, 1.0, 1.1e-7)
        unit = 10 ** (math.floor(math.log10(root)) - 5)
        assert found in [pytest.approx(math.floor(root / unit) * unit - less * unit, rel=1e-12) for less in (0, 1)]
        assert float(f"{found:.6g}") == found


def test_the_search_for_the_noise_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = noted(monkeypatch, monitor, "smallest_safe_argument")
    scale = monitor._epochs_scale(2000, 84, 1.0, 1e-6, 200_000.0)
    limits = {"lowest": 2.0, "highest": 200_000.0}
    assert limits_of(calls) == (1e-6, {"guess": 200_000.0 / 1.1, **limits})
    assert monitor._delta(1 / scale, 2000, 84, 1.0) <= 1e-6 < monitor._delta(1 / (scale * 0.9999), 2000, 84, 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# The shares of delta
# ---------------------------------------------------------------------------------------------------------------------


def test_the_share_of_hashes_by_hand() -> None:
    assert hash_delta(240, 10**6, 10**5) == pytest.approx((10**6 + 240 * 10**5 / 2**64) / 2**64, rel=1e-15, abs=0)
    assert hash_delta(10**9, 1, 2**60) == pytest.approx((1 + 10**9 / 16) / 2**64, rel=1e-15, abs=0)


def solver(asked_for: list[float]) -> Callable[[float], NoiseParameters]:
    """Notes the deltas it is asked for; less delta, more noise."""

    def solve(delta: float) -> NoiseParameters:
        asked_for.append(delta)
        return NoiseParameters(0.3 if delta > 0.6e-6 else 0.25)

    return solve


def test_all_of_delta_goes_to_the_noise_where_the_domain_is_known() -> None:
    asked_for: list[float] = []
    found = choose_for_known_domain(solver(asked_for), 1e-6, 5000, None)
    noise = NoiseParameters(0.3)
    assert found == (noise, smallest_safe_threshold(noise, 5000, DEFAULT_FALSE_REPORTS) - 1, 0.0)
    assert choose_for_known_domain(solver(asked_for), 1e-6, 5000, -3) == (noise, -3, 0.0)
    assert choose_for_known_domain(solver(asked_for), 1e-6, 0, None)[1] == 1, "never below one holder"
    assert asked_for == [1e-6] * 3


def test_an_open_domain_takes_half_of_delta_or_what_its_threshold_needs() -> None:
    asked_for: list[float] = []
    smallest = smallest_safe_threshold(NoiseParameters(0.25), 240, 0.5e-6)
    wanted = (NoiseParameters(0.25), smallest, 0.5e-6)
    assert choose_for_open_domain(solver(asked_for), 1e-6, 240, None) == wanted
    assert choose_for_open_domain(solver(asked_for), 1e-6, 240, smallest) == wanted
    assert asked_for == [0.5e-6] * 2
    with pytest.raises(ValueError, match=f"threshold must be >= {smallest}, .* got {smallest - 1}"):
        choose_for_open_domain(solver(asked_for), 1e-6, 240, smallest - 1)
    del asked_for[:]
    for above in (1, 40, 400):
        tail = 240 * NoiseParameters(0.25).upper_tail(smallest + above - 1)
        share = max(tail, 1e-12)
        noise, threshold, delta_open = choose_for_open_domain(solver(asked_for), 1e-6, 240, smallest + above)
        assert delta_open == pytest.approx(share, rel=1e-14, abs=0)
        assert (threshold, asked_for[-1]) == (smallest + above, 1e-6 - delta_open)
        assert noise == NoiseParameters(0.3 if 1e-6 - share > 0.6e-6 else 0.25)


def test_the_running_figure_is_computed_at_values_between_the_first_and_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = noted(monkeypatch, release_modes, "charging_game_deltas")
    hits, total = 6, GameAccountant(EACH, Q, 6).epsilon(DELTA) * 1.5
    found = epsilon_after_each_hit(EACH, Q, hits, total, DELTA)
    first, last = (GameAccountant(EACH, Q, count).epsilon(DELTA) for count in (1, hits))
    assert [given[:3] for given, _ in calls] == [(EACH, Q, hits)] * 33
    assert [given[3] for given, _ in calls] == pytest.approx(np.geomspace(first, last, 33).tolist(), rel=1e-12)
    assert {given[4] for given, _ in calls} == {20 * DELTA}
    assert (len(found), found[0]) == (hits, first)
    assert last * (1 - 1e-6) < found[-1] <= last
    for count, epsilon in enumerate(found, 1):
        assert charging_game_deltas(EACH, Q, hits, epsilon)[count - 1] <= DELTA * (1 + 1e-9)
        assert epsilon <= GameAccountant(EACH, Q, count).epsilon(DELTA) * 1.01


def test_the_running_figure_begins_at_a_thousandth_and_never_exceeds_the_total() -> None:
    total = GameAccountant(EACH, Q, HITS).epsilon(0.2)
    assert GameAccountant(EACH, Q, 1).epsilon(0.2) < total / 1000, "a generous delta covers the first hit"
    assert epsilon_after_each_hit(EACH, Q, HITS, total, 0.2)[0] == pytest.approx(total / 1000, rel=1e-12)
    lower = GameAccountant(EACH, Q, HITS).epsilon(DELTA) * (1 - 1e-8)
    assert lower * (1 - 1e-6) < max(epsilon_after_each_hit(EACH, Q, HITS, lower, DELTA)) <= lower


def test_a_chord_is_straight_in_the_exponential() -> None:
    low, high, delta = 0.5, 1.5, 0.02
    left, right = (0.9, 0.05), (0.8, 0.01)
    share = (0.05 - delta) / (0.05 - 0.01)
    wanted = math.log(math.exp(low) + share * (math.exp(high) - math.exp(low)))
    assert _chord((low, left), (high, right), 1, delta) == pytest.approx(wanted * (1 + 1e-9), rel=1e-14)
    assert _chord((low, left[:1]), (high, right), 1, delta) == high, "the left one has no such entry"
    assert _chord((low, (0.9, delta)), (high, right), 1, delta) == high
    assert _chord((low, left), (high, (0.8, delta)), 1, delta) == high, "rounded up, and not beyond"


# ---------------------------------------------------------------------------------------------------------------------
# Mixed charging
# ---------------------------------------------------------------------------------------------------------------------


def test_the_budget_of_an_order_by_hand() -> None:
    for epsilon, delta, order in ((1.0, 1e-6, 20.0), (3.0, 1e-9, 12.0)):
        found = MixedChargingAccountant.calibrate(epsilon, delta, order)
        divergence = epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)
        assert found.order == order
        assert 1 - 2e-8 < found.budget / (divergence * (order - 1)) <= 1 - 10 * ROUNDING * 0.999


def test_orders_are_tried_at_both_ends_of_their_range(monkeypatch: pytest.MonkeyPatch) -> None:
    mix = [CallKind(0.1, 0.3, 2), CallKind(0.3, 0.9, 1)]
    tried = []
    real = MixedChargingAccountant.calibrate

    def note(epsilon: float, delta: float, order: float) -> MixedChargingAccountant:
        tried.append((epsilon, delta, order))
        return real(epsilon, delta, order)

    monkeypatch.setattr(MixedChargingAccountant, "calibrate", note)
    best = MixedChargingAccountant.for_mix(20.0, 1e-6, mix)
    most = min(largest_lam(0.1, 0.3), largest_lam(0.3, largest_probability(0.3, 0.9)))
    ends = [1e-3 * 500 ** (at / 199) for at in range(200)]
    wanted = [1 + share * most for share in [*ends, *(1 - share for share in ends)]]
    assert [order for _, _, order in tried] == pytest.approx(wanted, rel=1e-12)
    assert {given[:2] for given in tried} == {(20.0, 1e-6)}
    assert best.order in [order for _, _, order in tried]
    monkeypatch.setattr(mixed_charging, "_SMALLEST_ORDER", 1 + most)
    with pytest.raises(ValueError, match="no order pays"):
        MixedChargingAccountant.for_mix(20.0, 1e-6, mix)


def test_a_larger_target_counts_as_the_largest_that_there_is() -> None:
    assert largest_probability(1.0, 1) == pytest.approx(1 / (math.e + 1), rel=1e-15)
    assert largest_probability(1.0, 0.2) == 0.2
    for refused in (0, -0.1, 1.0000001, True, math.nan):
        with pytest.raises(ValueError, match="target_probability must lie in"):
            largest_probability(1.0, refused)
