"""The real monitor as input for exact delta curves: all transcripts of a fixed sequence of windows, and the results of
one window for the best adaptive adversary of `dp_transforms.audit.query_law`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from dp_transforms.audit.query_law import Kernel, Result
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitor.monitor_settings import MonitorSettings
from tests.helpers.exact_monitor import (
    ONE,
    TARGET_USER,
    Outcome,
    Transcript,
    WindowProbe,
    hits_of,
    log_ratio,
    state_with_hits,
)


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
    probe_of: type[WindowProbe] = WindowProbe,
) -> dict[Transcript, float]:
    """Every transcript of these windows with its probability, exact except for the last digits of a float.

    remember: a window's outcomes are kept for equal states (the monitor holds no state of its own; a test compares).
    """
    probe = probe_of(settings, monitor=monitor)
    known: dict[tuple[int, int, bytes], dict[Transcript, Outcome]] = {}
    level: list[tuple[Transcript, float, MonitorState]] = [((), 1.0, state_with_hits(paid_before or {}))]
    for window, played in enumerate(rounds):
        cap = max(settings.threshold + settings.zone_width, max(len(others) for others in played.others) + 1)
        holders = played.holders(with_target)
        items = sum(bool(names) for names in holders)
        following = []
        for before, probability, state in level:
            at = (window, state.hit_bound, b"".join(state.budgets.to_blobs()))
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
# One window, for the best adaptive adversary
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Action:
    """What the adversary puts in one window: others that are active and others that have paid all their hits."""

    active_others: int
    excluded_others: int = 0


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
    entries: dict[int, list[list[Result]]] = {}
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
                results.append(Result(first / scale, second / scale, log_ratio(first, second), after - hits))
                if after not in entries and after not in open_states:
                    open_states.append(after)
            entries[hits].append(results)
    return entries


def _outcomes(
    probe: WindowProbe, settings: MonitorSettings, window: int, action: Action, hits: int | None
) -> dict[Transcript, Outcome]:
    others = fresh_users(window, action.active_others + action.excluded_others)
    paid = dict.fromkeys(others[action.active_others :], settings.hits_per_user)
    state = state_with_hits(paid if hits is None else {**paid, TARGET_USER: hits}, next_window=window)
    cap = max(settings.threshold + settings.zone_width, action.active_others + 1) + 1
    return probe.outcomes(window, [[*others, *([] if hits is None else [TARGET_USER])]], state, cap)
