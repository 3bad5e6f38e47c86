"""All transcripts of tiny replays of names with hits, with x' and without, through the real code: their divergence of
the plan's order is at most what a full purse stands for, in both directions, and their delta what it claims. Nothing
here is random."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.monitor.item_holders import pays_hits_of, weights_of
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.adversary import deltas_of_pair
from tests.helpers.exact_hits import (
    PURSE,
    HitPrices,
    hit_prices,
    holders_of_replay,
    holders_of_stream,
    law_of_hits,
    without,
)
from tests.helpers.exact_naming import Held
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import looks_trial
from tests.unit.purse_oracle import delta_of_budget

TARGET = "x'"
NOISE = ExponentialPower(1.0, 20)
ORDER, LOOKS, WEIGHT, DELTA_OPEN = 2.0, 4, 4, 0.02
SPACING = math.ceil(5 * NOISE.standard_deviation)
EPSILONS = [0.05 * index for index in range(41)]


def prices(hits: int = 1) -> HitPrices:
    return hit_prices(
        NOISE, ORDER, SPACING, hits=hits, hit_price=0.1063 / hits, weight=WEIGHT, looks=LOOKS, delta_open=DELTA_OPEN
    )


def settings_of(
    windows: int, threshold: int, known_threshold: int | None = None, *, hits: int = 1, domain_size: int = 0
) -> TrialPlan:
    listed = prices(hits)
    return looks_trial(
        stream="s",
        run_id="r",
        fingerprint="p",
        schedule=WindowSchedule.fixed(0, windows, 1),
        threshold=threshold,
        epsilon=2.0,
        delta=0.1,
        domain_size=domain_size,
        weights=listed.weights,
        units=listed.units,
        noise=NOISE,
        known_threshold=known_threshold or threshold,
        forget_after=2,
        spacing=SPACING,
        likely_noise=30,
        hits_per_user=hits,
        hit_units=listed.hit_units,
        hit_weights=listed.hit_weights,
        hit_look_units=listed.hit_look_units,
        hits_from=2,
    )


def every_window(windows: int, item: str = "a", first: int = 0) -> list[tuple[int, str]]:
    return [(window, item) for window in range(first, windows)]


def others(cells: list[tuple[int, str]], number: int = 3) -> dict[str, list[tuple[int, str]]]:
    """So many users with one pair each in each cell, on the looks list, with the large weight."""
    return {f"{window} {item} {user}": [(window, item)] for window, item in cells for user in range(number)}


def scenarios() -> dict[str, tuple[int, Held]]:
    """How many windows, and what is held. Every item of x' is held by others too, so that both worlds draw for it."""
    a, b = every_window(4), every_window(2, "b")
    return {
        "four windows": (4, {TARGET: a, **others(a)}),
        "with another user on the hits list": (3, {TARGET: a[:3], "u": a[:3], **others(a[:3])}),
        "two items in a window": (2, {TARGET: [*a[:2], *b], **others([*a[:2], *b])}),
        "on the looks list": (2, {TARGET: a[:1], "u": a[:2], **others(a[:2])}),
    }


def divergences(held: Held, settings: TrialPlan, **arguments: Any) -> tuple[float, float]:
    """Of the order, with x' from without and the reverse."""
    p, q = (law_of_hits(part, settings, **arguments) for part in (held, without(held, TARGET)))
    found = []
    for one, other in ((p, q), (q, p)):
        if any(probability > 0 and other.get(transcript, 0.0) == 0 for transcript, probability in one.items()):
            found.append(math.inf)
            continue
        total = sum(
            probability**ORDER * other[transcript] ** (1 - ORDER)
            for transcript, probability in one.items()
            if probability > 0
        )
        found.append(math.log(total) / (ORDER - 1))
    return found[0], found[1]


@functools.cache
def worst_divergence(name: str, margin: int, known_margin: int, hits: int) -> float:
    """margin: of the threshold from what the others add. known_margin: so much lower is that of known items."""
    windows, held = scenarios()[name]
    added = 3 * prices(hits).weights[-1]
    settings = settings_of(windows, added + margin, added + margin - known_margin, hits=hits)
    return max(divergences(held, settings))


@pytest.mark.parametrize(("margin", "known_margin", "hits"), [(4, 0, 1), (30, 20, 2)])
@pytest.mark.parametrize("name", scenarios())
def test_all_transcripts_together_diverge_by_less_than_a_purse(
    name: str, margin: int, known_margin: int, hits: int
) -> None:
    assert worst_divergence(name, margin, known_margin, hits) <= prices(hits).budget


@pytest.mark.parametrize(("margin", "known_margin"), [(4, 0), (16, 10)])
def test_a_stream_in_which_x_goes_over_to_the_hits_list(margin: int, known_margin: int) -> None:
    """It begins on the looks list, and pays for its hits in its second window."""
    held = {TARGET: every_window(4), **others(every_window(4))}
    added = 3 * prices().weights[0]  # the others do not know that they come once
    settings = settings_of(4, added + margin, added + margin - known_margin)
    cells = holders_of_stream({TARGET: held[TARGET]}, settings)
    assert cells.terms is not None
    assert cells.terms.tolist() == [2 * 1, *[2 * WEIGHT + 1] * 3]
    assert 0.3 * prices().budget < max(divergences(held, settings, weigh=holders_of_stream)) <= prices().budget


def test_the_purse_is_nearly_used_up() -> None:
    """Else the inequality above would say little."""
    assert worst_divergence("four windows", 4, 0, 1) > 0.6 * prices(1).budget
    assert all(worst_divergence(name, 4, 0, 1) > 0 for name in scenarios())


def test_the_scenarios_are_what_they_say() -> None:
    """x' is on the hits list but in one of them; one look with a hit costs a purse less than four looks alone."""
    for name, (windows, held) in scenarios().items():
        cells = holders_of_replay({TARGET: held[TARGET]}, settings_of(windows, 50))
        assert cells.terms is not None
        assert pays_hits_of(cells.terms).all() != (name == "on the looks list")
        costs = {1: prices().units[0], **dict(zip(prices().weights, prices().units, strict=True))}
        costs |= {WEIGHT: prices().hit_look_units[0]} if name != "on the looks list" else {}
        spent = sum(costs[weight] for weight in weights_of(cells.terms).tolist())
        assert spent + (name != "on the looks list") * prices().hit_units <= PURSE


# ---------------------------------------------------------------------------------------------------------------------
# Items that x' alone holds
# ---------------------------------------------------------------------------------------------------------------------


def claim(epsilon: float, hits: int) -> float:
    sampling = (1 + math.exp(epsilon)) * 40 * NOISE.sampling_total_variation
    return delta_of_budget(ORDER, prices(hits).budget, epsilon) + DELTA_OPEN + sampling


def excess_of(held: Held, settings: TrialPlan) -> float:
    """Largest delta - claim over both directions and all epsilons."""
    laws = [law_of_hits(part, settings) for part in (held, without(held, TARGET))]
    deltas = deltas_of_pair(laws[0], laws[1], EPSILONS)
    return max(
        max(both) - claim(epsilon, settings.hits_per_user) for both, epsilon in zip(deltas, EPSILONS, strict=True)
    )


ALONE: dict[str, tuple[int, Held]] = {
    "alone in each window": (4, {TARGET: every_window(4)}),
    "the item is known, and then x' is alone": (3, {TARGET: every_window(3, first=1), **others([(0, "a")], 30)}),
    "x' comes and goes": (4, {TARGET: [(1, "a"), (3, "a")], **others([(0, "a")], 4)}),
}


@pytest.mark.parametrize("share", [3, 1])
@pytest.mark.parametrize("name", ALONE)
def test_every_transcript_is_within_the_claim(name: str, share: int) -> None:
    windows, held = ALONE[name]
    threshold = prices().threshold
    assert excess_of(held, settings_of(windows, threshold, threshold // share)) <= 1e-12


@pytest.mark.parametrize("pairs", [[(0, "a"), (1, "a")], [(1, "a")]])
@pytest.mark.parametrize("known_threshold", [1, 12])
def test_all_transcripts_of_a_known_domain_diverge_by_less_than_a_purse(
    known_threshold: int, pairs: list[tuple[int, str]]
) -> None:
    """Nothing is set aside there for items of one user, and no threshold is too low."""
    settings = settings_of(2, known_threshold, domain_size=1)
    for held in ({TARGET: pairs}, {TARGET: pairs, "u": every_window(2)}):
        assert 0 < max(divergences(held, settings, domain=("a",))) <= prices().budget
