"""The best adaptive adversary: a dynamic program over (hits paid by the user, privacy loss).

Everything here is attained, so it is a lower bound on what an accountant may claim: every rounding is downward. What
one window can publish is given as a `Kernel`, from `query_law` or any other source. Nothing is assumed about it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from dp_transforms.audit.query_law import QueryLaw

Values = npt.NDArray[np.float64]

_SLACK = 1e-9  # of a lattice step: a loss of exactly j steps must not be rounded to j - 1
_ENOUGH = 12.0  # losses that exceed epsilon by more than this count as this: within 1e-5


@dataclasses.dataclass(frozen=True)
class KernelEntry:
    """One possible result of one window: two probabilities, the log of their ratio, and the user's hits after it."""

    with_target: float
    without_target: float
    log_ratio: float
    hits_after: int


@dataclasses.dataclass(frozen=True)
class Kernel:
    """entries[hits][action]: results of one window, for each number of hits that the user can have paid, 0 first."""

    entries: Mapping[int, Sequence[Sequence[KernelEntry]]]


def kernel_of_law(law: QueryLaw, distances: Iterable[int], hits_per_user: int) -> Kernel:
    """One action for each distance. A user that has paid all its hits changes nothing any more."""
    by_distance = [law.results(distance) for distance in distances]
    entries: dict[int, list[list[KernelEntry]]] = {
        paid: [[KernelEntry(*result[:3], paid + result.charged) for result in results] for results in by_distance]
        for paid in range(hits_per_user)
    }
    entries[hits_per_user] = [[KernelEntry(1.0, 1.0, 0.0, hits_per_user)] for _ in by_distance]
    return Kernel(entries)


@dataclasses.dataclass(frozen=True)
class AttainedCurve:
    """The delta that the best adversary attains at each epsilon: after all rounds, and after half of them."""

    epsilons: Values
    deltas: Values
    deltas_of_half: Values


def best_adversary(
    kernel: Kernel,
    *,
    step: float,
    rounds: int,
    epsilons: Sequence[float],
    adds_target: bool,
    items_per_window: int = 1,
    on_round: Callable[[], None] = lambda: None,
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
    values = np.tile(stop, (len(kernel.entries), 1))
    half = values
    for done in range(rounds):
        best = np.tile(stop, (len(values), 1))
        for by_shift in moves:
            of_window = values
            for _ in range(items_per_window):
                of_window = _before_call(of_window, by_shift, longest)
                np.maximum(best, of_window, out=best)
        values = best
        if done + 1 == (rounds + 1) // 2:
            half = values
        on_round()
    origin = [below - index for index in at_epsilon]
    exact = step * np.array(at_epsilon) + offset
    shrink = 1 - 1e-15 * calls * 8  # the rounding of the sums
    return AttainedCurve(exact, values[0, origin] * shrink, half[0, origin] * shrink)


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
    states = sorted(kernel.entries)
    index = {hits: row for row, hits in enumerate(states)}
    sign = 1 if adds_target else -1
    finite = [
        abs(entry.log_ratio)
        for by_action in kernel.entries.values()
        for results in by_action
        for entry in results
        if math.isfinite(entry.log_ratio)
    ]
    longest = max(1, math.ceil(max(finite) / step - _SLACK))
    moves = []
    for action in range(len(kernel.entries[states[0]])):
        entries_of_shift: dict[int, list[tuple[float, int, int]]] = {}
        for hits in states:
            for entry in kernel.entries[hits][action]:
                probability = entry.with_target if adds_target else entry.without_target
                loss = sign * entry.log_ratio
                if probability > 0 and loss > -math.inf:
                    shift = longest if loss == math.inf else math.floor(loss / step + _SLACK)
                    entries_of_shift.setdefault(shift, []).append((probability, index[hits], index[entry.hits_after]))
        by_shift = {}
        for shift, entries in entries_of_shift.items():
            probabilities, before, after = zip(*entries, strict=True)
            by_shift[shift] = csr_matrix((probabilities, (before, after)), shape=(len(states), len(states)))
        moves.append(by_shift)
    return moves, longest
