"""Exact delta curves of the real monitor: against a fixed sequence of windows, and against the best adaptive adversary.

Both return attained values, that is lower bounds on what an accountant may claim: every rounding is downward.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.monitoring.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitoring.settings import MonitorSettings
from tests.privacy.exact_monitor import (
    ONE,
    TARGET_USER,
    Outcome,
    Transcript,
    WindowProbe,
    hits_of,
    log_ratio,
    state_with_hits,
)

Values = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Round:
    """One window of the adversary's choice: the holders of each item, and which of the items x' holds too."""

    others: tuple[tuple[int, ...], ...]
    held: tuple[bool, ...]

    @classmethod
    def single(cls, others: Iterable[int], held: bool = True) -> Round:
        return cls((tuple(others),), (held,))

    def holders(self, with_target: bool) -> list[list[int]]:
        return [
            [*others, TARGET_USER] if held and with_target else [*others]
            for others, held in zip(self.others, self.held, strict=True)
        ]


def fresh_users(window: int, count: int) -> tuple[int, ...]:
    """Users that appear in no other window."""
    return tuple(range(1_000 * (window + 1), 1_000 * (window + 1) + count))


def transcript_distribution(
    settings: MonitorSettings,
    rounds: Sequence[Round],
    with_target: bool,
    *,
    monitor: type[HeavyHitterMonitor] = HeavyHitterMonitor,
    paid_before: dict[int, int] | None = None,
    remember: bool = True,
) -> dict[Transcript, float]:
    """Every transcript of these windows with its probability, exact but for the last digits of a float.

    remember: a window's outcomes are kept for equal states (the monitor holds no state of its own; a test compares).
    """
    probe = WindowProbe(settings, monitor=monitor)
    known: dict[tuple[int, int, bytes], dict[Transcript, Outcome]] = {}
    level: list[tuple[Transcript, float, MonitorState]] = [((), 1.0, state_with_hits(paid_before or {}))]
    for window, played in enumerate(rounds):
        cap = max(settings.threshold + settings.zone_width, max(len(others) for others in played.others) + 1)
        holders = played.holders(with_target)
        items = sum(bool(names) for names in holders)
        following = []
        for before, probability, state in level:
            at = (window, state.hit_bound, b"".join(state.budgets.to_cells()))
            if not remember or at not in known:
                known[at] = probe.outcomes(window, holders, state, cap)
            for transcript, outcome in known[at].items():
                if outcome.weight:
                    share = outcome.weight / (ONE * ONE) ** items
                    following.append(((*before, transcript), probability * share, outcome.state))
        level = following
    distribution = {transcript: probability for transcript, probability, _ in level}
    assert len(distribution) == len(level)
    assert math.isclose(math.fsum(distribution.values()), 1.0, abs_tol=1e-13)
    return distribution


def deltas_of_pair(
    p: dict[Transcript, float], q: dict[Transcript, float], epsilons: Sequence[float]
) -> list[tuple[float, float]]:
    """For each epsilon, ``max over S of P(S) - e^epsilon Q(S)`` and the same with P and Q exchanged."""
    transcripts = [*{**p, **q}]
    first = np.array([p.get(transcript, 0.0) for transcript in transcripts])
    second = np.array([q.get(transcript, 0.0) for transcript in transcripts])
    return [
        (
            float(np.maximum(0.0, first - math.exp(epsilon) * second).sum()),
            float(np.maximum(0.0, second - math.exp(epsilon) * first).sum()),
        )
        for epsilon in epsilons
    ]


# ---------------------------------------------------------------------------------------------------------------------
# The best adaptive adversary: a dynamic program over (hits paid by x', privacy loss)
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Action:
    """What the adversary puts in one window: others that are active and others that have paid all their hits."""

    active_others: int
    excluded_others: int = 0


@dataclasses.dataclass(frozen=True)
class KernelEntry:
    """One possible result of one window: log of its two probabilities' ratio, and the hits of x' after it."""

    with_target: float
    without_target: float
    log_ratio: float
    hits_after: int


@dataclasses.dataclass(frozen=True)
class Kernel:
    """entries[hits][action]: results of one window, extracted from the real monitor, for each number of hits of x'."""

    entries: dict[int, list[list[KernelEntry]]]


def extract_kernel(
    settings: MonitorSettings,
    actions: Sequence[Action],
    *,
    monitor: type[HeavyHitterMonitor] = HeavyHitterMonitor,
    most_states: int = 8,
) -> Kernel:
    """Probes one window for each action and each number of hits that x' can reach. Nothing is assumed about charging:
    the number of hits after a result is read off the real budgets."""
    probe = WindowProbe(settings, monitor=monitor)
    window = 3
    entries: dict[int, list[list[KernelEntry]]] = {}
    open_states = [0]
    without = [_outcomes(probe, settings, window, action, None) for action in actions]
    while open_states:
        hits = open_states.pop()
        entries[hits] = []
        assert len(entries) <= most_states, "x' is charged without end"
        for action, other in zip(actions, without, strict=True):
            results = []
            mine = _outcomes(probe, settings, window, action, hits)
            for transcript in {**mine, **other}:
                first = mine[transcript].weight if transcript in mine else 0
                second = other[transcript].weight if transcript in other else 0
                if not first and not second:
                    continue
                after = hits_of(mine[transcript].state, TARGET_USER) if transcript in mine else hits
                scale = ONE * ONE
                results.append(KernelEntry(first / scale, second / scale, log_ratio(first, second), after))
                if after not in entries and after not in open_states:
                    open_states.append(after)
            entries[hits].append(results)
    return Kernel(entries)


def _outcomes(
    probe: WindowProbe, settings: MonitorSettings, window: int, action: Action, hits: int | None
) -> dict[Transcript, Outcome]:
    others = fresh_users(window, action.active_others + action.excluded_others)
    paid = dict.fromkeys(others[action.active_others :], settings.hits_per_user)
    state = state_with_hits(paid if hits is None else {**paid, TARGET_USER: hits}, next_window=window)
    cap = max(settings.threshold + settings.zone_width, action.active_others + 1) + 1
    return probe.outcomes(window, [[*others, *([] if hits is None else [TARGET_USER])]], state, cap)


@dataclasses.dataclass(frozen=True)
class AttainedCurve:
    """delta that the best adversary attains at each epsilon, and the actions it starts with."""

    epsilons: Values
    deltas: Values
    first_actions: list[Action]


_STEPS_PER_EPSILON = 40
_SLACK = 1e-9  # of a lattice step: so that a loss of exactly j steps is not rounded to j - 1


def best_adversary(
    kernel: Kernel,
    actions: Sequence[Action],
    *,
    epsilon_per_query: float,
    rounds: int,
    epsilons: Sequence[float],
    adds_target: bool,
) -> AttainedCurve:
    """The largest ``E[(1 - exp(epsilon - loss))_+]`` over all adaptive choices of actions, with the right to stop.

    adds_target: P is the monitor with x' and Q without (else the reverse). The value depends on the loss and epsilon
    only through their difference, so that one pass gives the whole curve. Losses live on a lattice and are rounded
    down; below the lattice the value is taken as 0, above as the one of its top: the adversary may do better.
    """
    step = epsilon_per_query / _STEPS_PER_EPSILON
    below = math.ceil((max(epsilons) + 20 * epsilon_per_query + 2.0) / step)
    above = math.ceil(12.0 / step)
    most = 4 * _STEPS_PER_EPSILON  # longest step that is followed
    excess = step * np.arange(-below, above + 1)  # loss - epsilon
    # Every window may have rounded up by _SLACK of a step: charge the adversary for all of them.
    stop = -np.expm1(np.minimum(0.0, rounds * _SLACK * step - excess))
    stop = np.maximum(stop, 0.0)

    moves: dict[int, list[list[tuple[float, int, int]]]] = {}
    for hits, by_action in kernel.entries.items():
        moves[hits] = []
        for results in by_action:
            merged: dict[tuple[int, int], float] = {}
            for entry in results:
                probability = entry.with_target if adds_target else entry.without_target
                loss = entry.log_ratio if adds_target else -entry.log_ratio
                shift = (
                    most if loss == math.inf else math.floor(loss / step + _SLACK) if loss > -math.inf else -most - 1
                )
                if probability > 0 and shift >= -most:
                    key = (min(shift, most), entry.hits_after)
                    merged[key] = merged.get(key, 0.0) + probability
            moves[hits].append([(probability, shift, after) for (shift, after), probability in merged.items()])

    values = dict.fromkeys(moves, stop)
    choice: dict[int, np.ndarray] = {}
    for _ in range(rounds):
        padded = {
            hits: np.concatenate([np.zeros(most), value, np.full(most, value[-1])]) for hits, value in values.items()
        }
        updated = {}
        for hits, by_action in moves.items():
            best, chosen = stop, np.full(len(stop), -1)
            for index, results in enumerate(by_action):
                total = np.zeros(len(stop))
                for probability, shift, after in results:
                    total += probability * padded[after][most + shift : most + shift + len(stop)]
                chosen = np.where(total > best, index, chosen)
                best = np.maximum(best, total)
            updated[hits], choice[hits] = best, chosen
        values = updated
    at = [below - round(epsilon / step) for epsilon in epsilons]
    exact = step * (below - np.array(at))
    return AttainedCurve(exact, values[0][at], [actions[choice[0][index]] for index in at if choice[0][index] >= 0])
