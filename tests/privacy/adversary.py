"""The best adaptive adversary, by a dynamic program over hits paid by the user and privacy loss.

What it has is attained, so it is a lower bound on what an accountant may claim: every rounding is downward.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from dp_transforms.audit.hits import Result, ThresholdLaw
from tests.helpers.trial_plan import TrialPlan
from tests.privacy.exact_game import Outcome
from tests.privacy.exact_hits import TARGET_USER, HitsGame, Stored, Transcript, fresh_users

Values = npt.NDArray[np.float64]

_SLACK = 1e-9  # of a lattice step: a loss of exactly j steps must not be rounded to j - 1
_ENOUGH = 12.0  # losses that exceed epsilon by more than this count as this: within 1e-5

# By the hits that the user has paid, 0 first, and by action: the results of one window.
Kernel = Mapping[int, Sequence[Sequence[Result]]]


def kernel_of_law(law: ThresholdLaw, distances: Sequence[int], hits_per_user: int) -> Kernel:
    """One action for each distance. A user that has paid all its hits changes nothing any more."""
    of_active = [law.results(distance) for distance in distances]
    nothing = [(Result(1.0, 1.0, 0.0, 0),)] * len(distances)
    return {paid: of_active if paid < hits_per_user else nothing for paid in range(hits_per_user + 1)}


@dataclasses.dataclass(frozen=True)
class AttainedCurve:
    """The delta that the best adversary attains at each epsilon."""

    epsilons: Values
    deltas: Values


def best_adversary(
    kernel: Kernel, *, step: float, rounds: int, epsilons: Sequence[float], adds_target: bool, items_per_window: int = 1
) -> AttainedCurve:
    """The largest ``E[(1 - exp(epsilon - loss))_+]`` over all adaptive choices of actions, with the right to stop.

    rounds: windows. items_per_window: in each window the adversary makes up to this many calls, all of one action, and
    learns their results at its end. A user that one of them excludes is not in those that follow.
    adds_target: P is the run with the user and Q the one without (else the reverse). The value depends on the loss and
    epsilon only through their difference, so one pass yields the whole curve: epsilons are whole steps apart. Losses
    are on a lattice, rounded down to whole steps. Below the lattice the value counts as 0, above it as that of its
    top: the adversary may do better. If all losses are whole steps, rounding loses nothing.
    """
    moves, longest = _moves(kernel, step, adds_target)
    offset = epsilons[0] - step * math.floor(epsilons[0] / step + _SLACK)
    at_epsilon = [round((epsilon - offset) / step) for epsilon in epsilons]
    calls = rounds * items_per_window
    reach = min(calls, math.ceil(6 * math.sqrt(calls)) + 20) * longest
    below = max(at_epsilon) + reach
    above = min(math.ceil(_ENOUGH / step), calls * longest)
    # Loss - epsilon. Every call may have rounded up by _SLACK of a step: charge the adversary for all of them.
    excess = step * np.arange(-below, above + 1) - offset - calls * _SLACK * step
    stop = np.maximum(0.0, -np.expm1(np.minimum(0.0, -excess)))
    values = np.tile(stop, (len(kernel), 1))
    for _ in range(rounds):
        best = np.tile(stop, (len(values), 1))
        for by_shift in moves:
            of_window = values
            for _ in range(items_per_window):
                of_window = _before_call(of_window, by_shift, longest)
                np.maximum(best, of_window, out=best)
        values = best
    origin = [below - index for index in at_epsilon]
    exact = step * np.array(at_epsilon) + offset
    shrink = 1 - 1e-15 * calls * 8  # the rounding of the sums
    return AttainedCurve(exact, values[0, origin] * shrink)


def _before_call(values: Values, by_shift: Mapping[int, csr_matrix], longest: int) -> Values:
    """The value before a call of one action, from the values after it: 0 below the lattice, that of its top above."""
    below, above = np.zeros((len(values), longest)), np.repeat(values[:, -1:], longest, axis=1)
    padded = np.concatenate([below, values, above], axis=1)
    total = np.zeros_like(values)
    for shift, transition in by_shift.items():
        total += (transition @ padded)[:, longest + shift : longest + shift + values.shape[1]]
    return total


def _moves(kernel: Kernel, step: float, adds_target: bool) -> tuple[list[dict[int, csr_matrix]], int]:
    """For each action and number of steps that the loss moves, a matrix of probabilities [hits before, hits after].

    Also the longest step that is followed. Longer steps up are cut to it, those of results that rule Q out too. Results
    that rule P out cannot occur under P.
    """
    states = sorted(kernel)
    index = {hits: row for row, hits in enumerate(states)}
    sign = 1 if adds_target else -1
    losses = [abs(result.log_ratio) for actions in kernel.values() for results in actions for result in results]
    longest = max(1, math.ceil(max(filter(math.isfinite, losses)) / step - _SLACK))
    moves = []
    for action in range(len(kernel[states[0]])):
        by_shift: dict[int, list[tuple[float, int, int]]] = {}
        for hits in states:
            for result in kernel[hits][action]:
                probability = result.with_user if adds_target else result.without_user
                loss = sign * result.log_ratio
                if probability > 0 and loss > -math.inf:
                    shift = longest if loss == math.inf else math.floor(loss / step + _SLACK)
                    place = (probability, index[hits], index[hits + result.charged])
                    by_shift.setdefault(shift, []).append(place)
        moves.append({shift: _matrix(places, len(states)) for shift, places in by_shift.items()})
    return moves, longest


def _matrix(places: Sequence[tuple[float, int, int]], states: int) -> csr_matrix:
    """places: probability, row and column."""
    probabilities, before, after = zip(*places, strict=True)
    return csr_matrix((probabilities, (before, after)), shape=(states, states))


# --- One window of the real monitor, for this adversary


@dataclasses.dataclass(frozen=True)
class Action:
    """What the adversary puts in one window: others that are active and others that have paid all their hits."""

    active_others: int
    excluded_others: int = 0


def extract_kernel(settings: TrialPlan, actions: Sequence[Action]) -> Kernel:
    """One window for each action and each number of hits that x' can reach. Nothing is assumed about charging: the
    number of hits after a result is read off the real counters."""
    game, window = HitsGame(settings), 3

    def outcomes(action: Action, hits: int | None) -> dict[Transcript, Outcome]:
        others = fresh_users(window, action.active_others + action.excluded_others)
        paid = dict.fromkeys(others[action.active_others :], settings.hits_per_user)
        state = Stored.of_hits({**paid, TARGET_USER: hits or 0}, next_window=window)
        cap = max(settings.threshold + settings.hits.zone_width, action.active_others + 1) + 1
        return game.outcomes(window, [[*others, *([] if hits is None else [TARGET_USER])]], state, cap)

    without = [outcomes(action, None) for action in actions]
    entries: dict[int, list[list[Result]]] = {}
    waiting = [0]
    while waiting:
        hits = waiting.pop()
        entries[hits] = [
            _results(outcomes(action, hits), other, hits) for action, other in zip(actions, without, strict=True)
        ]
        assert len(entries) <= 8, "x' is charged without end"
        after = {hits + result.charged for results in entries[hits] for result in results}
        waiting += after - {*entries, *waiting}
    return entries


def _results(mine: Mapping[Transcript, Outcome], other: Mapping[Transcript, Outcome], hits: int) -> list[Result]:
    found = []
    for transcript in {**mine, **other}:
        first, second = (each[transcript].share if transcript in each else 0 for each in (mine, other))
        if first or second:
            log_ratio = math.log(first / second) if first and second else math.inf if first else -math.inf
            after = mine[transcript].state.hits() if transcript in mine else hits
            found.append(Result(float(first), float(second), log_ratio, after - hits))
    return found
