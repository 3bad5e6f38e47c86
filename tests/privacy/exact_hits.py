"""Windows in which users pay for hits: all that the real monitor can publish, and leave behind, in each of them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dp_transforms.accounting.charging_game import GameAccountant, between_probability
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.core.contribution_counters import ContributionCounters, HitEntries
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.core.hit_noise import query_noise
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.public_items import EmptyItems, binomial_integers
from dp_transforms.core.window_report import WindowReport, release_order
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import hits_trial
from tests.privacy.exact_game import ChosenKeys, Outcome, Piece, law_of, outcomes_of, worst_ratio
from tests.reference.exact_law import Law
from tests.reference.log import ONE, tails_of

TARGET_USER = 7  # x', the user that the neighbouring logs differ in
Transcript = tuple[Any, ...]
Holders = Sequence[Sequence[int]]  # of each item


def settings_for(
    mode: str,
    epsilon_per_query: float,
    hits: int,
    threshold: int,
    zone_width: int = 2,
    *,
    max_items: int = 1,
    public_item_count: int = 0,
) -> TrialPlan:
    return hits_trial(
        schedule=WindowSchedule.fixed(0, 100, 1),
        mode=mode,
        threshold=threshold,
        zone_width=zone_width if mode == "hits" else 0,
        epsilon_per_query=epsilon_per_query,
        hits_per_user=hits,
        max_items_per_user=max_items,
        epsilon_after_hits=tuple(float(hit) for hit in range(1, hits + 1)),
        public_item_count=public_item_count,
    )


def claim_of(settings: TrialPlan, epsilon: float, hits: int | None = None) -> float:
    """What target charging promises. hits: instead of those of the plan."""
    each, zone = settings.charged_hits.epsilon_per_query, settings.charged_hits.zone_width
    q = between_probability(each, zone) if settings.charged_hits.mode == "names" else not_prior_probability(each)
    return _delta(each, q, hits or settings.hits_per_user, epsilon)


@functools.cache
def _delta(epsilon_per_query: float, q: float, hits: int, epsilon: float) -> float:
    return GameAccountant(epsilon_per_query, q, hits).delta(epsilon)


class Stored(NamedTuple):
    """What a window leaves, as Beam keeps it between windows. chunks: of the users' hits."""

    next_window: int
    hit_bound: int
    chunks: tuple[bytes, ...]

    @classmethod
    def of(cls, state: MonitorState) -> Stored:
        return cls(state.next_window, state.hit_bound, tuple(state.budgets.chunks()))

    @classmethod
    def of_hits(cls, hits: Mapping[int, int], next_window: int = 0) -> Stored:
        users = np.array(sorted(user for user in hits if hits[user]), dtype=np.uint64)
        budgets = ContributionCounters()
        budgets.add(HitEntries(users, np.array([hits[int(user)] for user in users], dtype=np.uint32)))
        return cls.of(MonitorState(next_window, 0, budgets))

    def state(self) -> MonitorState:
        entries = ContributionCounters(map(HitEntries.from_bytes, self.chunks))
        return MonitorState(self.next_window, self.hit_bound, entries)

    def hits(self, user: int = TARGET_USER) -> int:
        return int(self.state().budgets.hits(np.array([user], dtype=np.uint64))[0])


class HitsGame:
    """All that one window can publish. Item number i has the keyed hash (0, i)."""

    def __init__(self, settings: TrialPlan) -> None:
        self._settings, self._keys = settings, ChosenKeys(settings)
        keys: Any = self._keys
        self._monitor = HeavyHitterMonitor(settings, keys)
        self._tails = tails_of(settings.hits.epsilon_per_query)

    def outcomes(self, window: int, holders: Holders, before: Stored, cap: int) -> dict[Any, Outcome]:
        """cap: counts from here on are one outcome. Merging outcomes can only help privacy, so a violation that is
        found stays one; and nothing is lost where the likelihood ratio is constant from there on."""
        cells = _cells_of(window, holders)
        candidates: dict[Any, ItemHolders] = {}  # by the pass bits, on which alone they depend

        def run(chosen: dict[Any, Any]) -> tuple[Transcript, Stored]:
            self._keys.chosen = chosen
            bits = chosen.get("empty"), *(chosen[item][0] for item in chosen if item != "empty")
            if bits not in candidates:
                tested = (
                    ItemHolders.merge([cells, self._empty_items(window)]) if self._settings.public_item_count else cells
                )
                candidates[bits] = find_candidates(tested, self._settings, self._keys)  # type: ignore[arg-type]
            state = before.state()
            found = dict(self._monitor.close_windows([candidates[bits]], state))
            state.next_window = window + 1
            return _transcript_of(found.get(window), cap), Stored.of(state)

        return outcomes_of(run, *self._cases(holders, before, cap))

    def _empty_items(self, window: int) -> ItemHolders:
        tail = query_noise(self._settings, self._keys).empty_item_tail()  # type: ignore[arg-type]
        items = EmptyItems(_table_of(range(self._settings.public_item_count)), tail, self._keys.empty_item_uniforms())
        return items.without_holders(window, window + 1)

    def _cases(self, holders: Holders, before: Stored, cap: int) -> Iterator[dict[Any, list[Piece]]]:
        """The draws of each item that somebody holds; and with public items each set of empty ones, with their draws
        given that they pass."""
        held, seen = dict[Any, list[Piece]](), set[int]()  # seen: holders of earlier items, which these may exclude
        for item, users in enumerate(holders):
            if users:
                limit = self._settings.hits_per_user
                least_active = sum(user not in seen and before.hits(user) < limit for user in users)
                held[item] = [*self._pieces(self._settings.threshold - len(users), cap - least_active)]
                seen.update(users)
        if not (size := self._settings.public_item_count):
            yield held
            return
        assert len(holders) == size
        passing = self._tails.tail(self._settings.threshold)
        bounds = [0, *binomial_integers(size, passing)]
        bounds += [ONE] * (size + 2 - len(bounds))
        given_pass = [
            Piece(piece.share / Fraction(passing, ONE), piece.ends)
            for piece in self._pieces(self._settings.threshold, cap)
            if piece.ends[0][0] < passing
        ]
        for number, (low, high) in enumerate(itertools.pairwise(bounds)):
            for drawn in itertools.combinations(range(size), number) if low < high else ():
                left_out = tuple(item for item in range(size) if item not in drawn)
                words = (left_out if 2 * number > size else drawn) or (0,)
                share = Fraction(high - low, ONE * math.comb(size, number))
                empty = Piece(share, ((low, words), (high - 1, words)))
                yield {"empty": [empty], **held, **{item: given_pass for item in drawn if item not in held}}

    def _pieces(self, margin: int, last_value: int) -> Iterator[Piece]:
        """The bit "below" first; then, given that it came up, each noise value, those from last_value on as one."""
        passing, reach = self._tails.tail(margin), self._tails.reach
        if passing < ONE:
            yield Piece(Fraction(ONE - passing, ONE), ((passing, 0), (ONE - 1, ONE - 1)))
        if not passing:
            return
        values = range(max(margin, -reach) + 1, max(last_value, margin) + 1)
        cuts = [ONE, *(min(ONE, -(-self._tails.tail(value) * ONE // passing)) for value in values), 0]
        for high, low in itertools.pairwise(cuts):
            if high > low:
                share = Fraction(passing * (high - low), ONE * ONE)
                yield Piece(share, ((passing - 1, low), (passing - 1, high - 1)))


def _table_of(items: Sequence[int]) -> ItemTable:
    hashes = np.array([[0, item] for item in items], dtype=np.uint64).reshape(-1, 2)
    return ItemTable.with_labels(hashes, pa.array([f"item {item}" for item in items], pa.string()))


def _cells_of(window: int, holders: Holders) -> ItemHolders:
    """Items without a holder are not there, as in a real log."""
    items = [item for item, users in enumerate(holders) if users]
    counts = np.array([len(holders[item]) for item in items], dtype=np.int64)
    users = np.array([user for item in items for user in holders[item]], dtype=np.uint64)
    return ItemHolders(np.full(len(items), window), np.arange(len(items)), counts, users, _table_of(items))


def _transcript_of(report: WindowReport | None, cap: int) -> Transcript:
    """All of a report. The order depends on the counts, so it is made again where these are merged."""
    if report is None:
        return ()
    hitters = (
        found if found.noisy_count is None else found._replace(noisy_count=min(found.noisy_count, cap))
        for found in report.heavy_hitters
    )
    return (*report[:3], tuple(sorted(hitters, key=release_order)), *report[4:])


# --- Sequences of windows


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


def law_of_windows(game: HitsGame, rounds: Sequence[Round], top: int, start: Stored, with_target: bool) -> Law:
    """top: of the noisy counts that are told apart, at least."""

    def outcomes(window: int, state: Stored) -> dict[Any, Outcome]:
        played = rounds[window]
        cap = max(top, max(len(others) for others in played.others) + 1)
        return game.outcomes(window, played.holders(with_target), state, cap)

    return law_of(len(rounds), start, outcomes)


def ratio_of(
    claimed: TrialPlan,
    rounds: Sequence[Round],
    epsilons: Sequence[float],
    *,
    real: HitsGame | None = None,
    alone: float = 0.0,
    paid_before: Mapping[int, int] | None = None,
) -> float:
    """The `worst_ratio` of these windows with x' and without. real: what runs, if it is not what is claimed. alone:
    what lone items add to the claim."""
    game, top = real or HitsGame(claimed), claimed.threshold + claimed.hits.zone_width
    start = Stored.of_hits(paid_before or {})
    laws = (law_of_windows(game, rounds, top, start, present) for present in (True, False))
    return worst_ratio(*laws, lambda epsilon: alone + claim_of(claimed, epsilon), epsilons)
