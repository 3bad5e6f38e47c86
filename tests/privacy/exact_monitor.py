"""The real monitor, driven by chosen uniforms: everything that it can publish, with exact probabilities.

`ChosenKeys` replaces `StreamKeys` and returns uniforms that select one outcome of the noise. All the rest is the real
code: pass bit, inversion, conditioning, release rule, charging, exclusion, budgets. The probability of an outcome
is the number of 128-bit uniforms that lead to it; both ends of each such range are run, and all ranges of a window add
up to 2^256 (a pass uniform and a noise uniform).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from dp_transforms.accounting.charging_game import between_probability
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability, upper_tail_integers
from dp_transforms.core.contribution_counters import ContributionCounters, HitEntries
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.window_report import WindowReport, release_order
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.core_runs import close_window
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import hits_trial

ONE = 1 << 128
TARGET_USER = 7  # x', the user that the neighbouring logs differ in

Transcript = tuple[Any, ...]


class TailIntegers:
    """``tail(m) = 2^128 Pr[Z >= m]`` of the sampler's table, for every integer m."""

    def __init__(self, epsilon: float) -> None:
        self._tails = upper_tail_integers(epsilon)
        self.reach = len(self._tails)

    def __call__(self, margin: int) -> int:
        if margin > self.reach:
            return 0
        if margin >= 1:
            return self._tails[margin - 1]
        return ONE - self._tails[-margin] if margin > -self.reach else ONE

    def cut(self, value: int, margin: int) -> int:
        """Given ``Z >= margin``, the noise uniforms below this number are those with ``Z >= value``."""
        return min(ONE, -(-self(value) * ONE // self(margin)))


class _ChosenUniforms:
    def __init__(self, by_item: dict[int, int]) -> None:
        self._by_item = by_item

    def of_pairs(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        assert first.shape == second.shape
        chosen = [self._by_item[int(low)] for low in first[:, 1]]
        return np.array([divmod(value, 1 << 64) for value in chosen], dtype=np.uint64).reshape(-1, 2)


class ChosenKeys:
    """Same interface as `StreamKeys`, as far as the monitor uses it. Uniforms are chosen by the number of the item."""

    stream = "s"

    def __init__(self) -> None:
        self.passes: dict[int, int] = {}
        self.noise: dict[int, int] = {}

    def pass_uniforms(self, window: int) -> _ChosenUniforms:
        return _ChosenUniforms(self.passes)

    def noise_uniforms(self, window: int) -> _ChosenUniforms:
        return _ChosenUniforms(self.noise)

    def widen_users(self, users: np.ndarray) -> np.ndarray:
        return np.stack([np.zeros_like(users), users], axis=1)


def settings_for(
    mode: str,
    epsilon_per_query: float,
    hits: int,
    threshold: int,
    zone_width: int = 2,
    *,
    max_items: int = 1,
    domain_size: int = 0,
) -> TrialPlan:
    return hits_trial(
        stream="s",
        run_id="r",
        fingerprint="p",
        schedule=WindowSchedule.fixed(0, 100, 1),
        mode=mode,
        threshold=threshold,
        zone_width=zone_width if mode == "hits" else 0,
        epsilon_per_query=epsilon_per_query,
        hits_per_user=hits,
        max_items_per_user=max_items,
        epsilon=1.0,
        delta=1e-6,
        epsilon_after_hits=tuple(float(hit) for hit in range(1, hits + 1)),
        domain_size=domain_size,
    )


def target_probability(settings: TrialPlan) -> float:
    """q of what this mode charges for."""
    if settings.charged_hits.mode == "names":
        return between_probability(settings.hits.epsilon_per_query, settings.hits.zone_width)
    return not_prior_probability(settings.hits.epsilon_per_query)


def cells_of(window: int, holders_by_item: Sequence[Sequence[int]]) -> ItemHolders:
    """One window; item number i has the keyed hash i. Items without a holder are not there, as in a real log."""
    items = [item for item, holders in enumerate(holders_by_item) if len(holders)]
    hashes = np.array([[0, item] for item in items], dtype=np.uint64).reshape(-1, 2)
    table = ItemTable.with_labels(hashes, pa.array([f"item {item}" for item in items], pa.string()))
    counts = [len(holders_by_item[item]) for item in items]
    holders = np.array([user for item in items for user in holders_by_item[item]], dtype=np.uint64)
    return ItemHolders(
        np.full(len(items), window, dtype=np.int64),
        np.arange(len(items), dtype=np.int64),
        np.array(counts, dtype=np.int64),
        holders,
        table,
    )


def copy_state(state: MonitorState) -> MonitorState:
    """As Beam keeps it between windows: through the cells of its bytes."""
    return MonitorState(
        state.next_window, state.hit_bound, ContributionCounters(map(HitEntries.from_bytes, state.budgets.chunks()))
    )


def state_with_hits(hits: dict[int, int], next_window: int = 0) -> MonitorState:
    users = np.array(sorted(user for user in hits if hits[user]), dtype=np.uint64)
    budgets = ContributionCounters()
    budgets.add(HitEntries(users, np.array([hits[int(user)] for user in users], dtype=np.uint32)))
    return MonitorState(next_window, 0, budgets)


def hits_of(state: MonitorState, user: int) -> int:
    return int(state.budgets.hits(np.array([user], dtype=np.uint64))[0])


def transcript_of(report: WindowReport | None, cap: int) -> Transcript:
    """All of a report. Counts from `cap` on are one outcome: merging outcomes can only help privacy, so a violation
    that is found stays one; and nothing is lost where the likelihood ratio is constant from there on."""
    if report is None:
        return ()
    # The order depends on the counts, so it is made again where these are merged.
    clipped = (hitter._replace(noisy_count=_clipped(hitter.noisy_count, cap)) for hitter in report.heavy_hitters)
    hitters = tuple(sorted(clipped, key=release_order))
    return (*report[:3], hitters, *report[4:])


def _clipped(count: int | None, cap: int) -> int | None:
    return None if count is None else min(count, cap)


@dataclasses.dataclass(frozen=True)
class Piece:
    """A range of draws of one item with one noise outcome: its weight in 2^256 and the two ends of its uniforms."""

    weight: int | Fraction
    pass_uniform: int
    noise_uniforms: tuple[int, int]


def pieces_of(tails: TailIntegers, margin: int, last_value: int) -> Iterator[Piece]:
    """The bit "below" first; then, given that the bit came up, each noise value, those from last_value on as one."""
    passing = tails(margin)
    if passing < ONE:
        yield Piece((ONE - passing) * ONE, passing, (0, ONE - 1))
    if not passing:
        return
    values = [*range(max(margin, -tails.reach), max(last_value, margin) + 1)]
    cuts = [*(tails.cut(value, margin) for value in values), 0]
    cuts[0] = ONE
    for high, low in itertools.pairwise(cuts):
        if high > low:
            yield Piece(passing * (high - low), passing - 1, (low, high - 1))


@dataclasses.dataclass
class Outcome:
    """chunks: of the state."""

    weight: int | Fraction
    state: MonitorState
    chunks: list[bytes]


class WindowProbe:
    """All that one window can publish, by transcript."""

    def __init__(self, settings: TrialPlan) -> None:
        self._settings = settings
        self._keys = ChosenKeys()
        self._monitor = HeavyHitterMonitor(settings, self._keys)  # type: ignore[arg-type]
        self._tails = TailIntegers(settings.hits.epsilon_per_query)

    def outcomes(
        self, window: int, holders_by_item: Sequence[Sequence[int]], state: MonitorState, cap: int
    ) -> dict[Transcript, Outcome]:
        """cap: counts from here on are one outcome. The state after a transcript must be a function of it."""
        found: dict[Transcript, Outcome] = {}
        pieces = self.held_pieces(holders_by_item, state, cap)
        self.collect(found, window, cells_of(window, holders_by_item), pieces, state, cap)
        assert sum(outcome.weight for outcome in found.values()) == (ONE * ONE) ** len(pieces)
        return found

    def held_pieces(
        self, holders_by_item: Sequence[Sequence[int]], state: MonitorState, cap: int
    ) -> dict[int, list[Piece]]:
        """The draws of each item that somebody holds, by its number."""
        pieces: dict[int, list[Piece]] = {}
        seen: set[int] = set()  # holders of earlier items, which these may exclude
        for item, holders in enumerate(holders_by_item):
            if holders:
                limit = self._settings.hits_per_user
                least_active = sum(user not in seen and hits_of(state, user) < limit for user in holders)
                margin = self._settings.threshold - len(holders)
                pieces[item] = [*pieces_of(self._tails, margin, cap - least_active)]
                seen.update(holders)
        return pieces

    def collect(
        self,
        found: dict[Transcript, Outcome],
        window: int,
        cells: ItemHolders,
        pieces: Mapping[int, Sequence[Piece]],
        state: MonitorState,
        cap: int,
        scale: int | Fraction = 1,
    ) -> None:
        """Adds what these cells can publish, for all combinations of draws. scale: of their weights."""
        known: dict[tuple[int, ...], ItemHolders] = {}  # candidates by the pass bits, on which alone they depend
        for combination in itertools.product(*pieces.values()):
            weight = scale * math.prod(piece.weight for piece in combination)
            passes = tuple(piece.pass_uniform for piece in combination)
            for end in (0, 1):
                self._keys.passes = dict(zip(pieces, passes, strict=True))
                self._keys.noise = dict(zip(pieces, (piece.noise_uniforms[end] for piece in combination), strict=True))
                after = copy_state(state)
                if passes not in known:
                    known[passes] = find_candidates(cells, self._settings, self._keys)  # type: ignore[arg-type]
                report = close_window(self._monitor, window, known[passes], after)
                transcript = transcript_of(report, cap)
                if end == 0:
                    first_end = transcript
                    outcome = found.setdefault(transcript, Outcome(0, after, after.budgets.chunks()))
                    outcome.weight += weight
                assert transcript == first_end, "one noise value, two results"
                assert after.budgets.chunks() == found[transcript].chunks, "one transcript, two charges"


def log_ratio(numerator: int, denominator: int) -> float:
    """ln of a ratio of large integers."""
    if not denominator:
        return float("inf")
    if not numerator:
        return float("-inf")
    shift = 1 << 120
    return float(np.log(float(numerator * shift // denominator)) - 120 * np.log(2.0))
