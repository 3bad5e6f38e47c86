"""What the real code lets users pay: no purse is overdrawn, and no weight follows another user's events.

Many users, and some with far more looks than a purse pays for, go through the real weights of a replay and the real
purses of a stream. Of each user it is added up what its weights cost. Then the same users again, without half of the
others: no weight may change. Looks in rounds go through the real rounds of a whole run and of its parts, which hand
over what is left in each purse; what earlier rounds named is drawn by lot, and told to all alike.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dp_transforms.audit.noise_law import Whole
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.round_candidates import WindowBlocks
from dp_transforms.core.stage import Span
from dp_transforms.core.steps import SpendBudgets, WeighRound, replay_weights
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.audit.carried import Carried
from tests.audit.copies import Rows, contributions_of, labels_of, numbers_of
from tests.helpers.charging_rules import ChargingRules
from tests.helpers.small_runs import SECRET
from tests.helpers.trial_plan import TrialPlan

_WINDOWS = 6
_USERS = 120
_ITEMS = 40  # which users share
_MOST_PAIRS = 8  # of a usual user in a window
_WHOLE, _PARTS = (_WINDOWS,), (2, 3, _WINDOWS)  # where parts of a run in rounds end; the second one within a block
_OF_BLOCKS = 224  # of 256 items are named in a block

Cells = collections.Counter[tuple[int, int]]  # numbers by window and item
Weights = dict[tuple[int, int, int], int]  # by user, window and item


Broken = tuple[list[str], dict[str, float]]  # rules that are broken, and the largest share of a purse that is spent


def broken_rules(mechanism: ChargingRules, run: TrialPlan) -> Broken:
    """The shares are by what was tried: a replay and a stream, or a replay in rounds and a run in parts."""
    slide = run.schedule.slide_seconds
    if run.rounds is not None:
        return _broken_in_rounds(mechanism, run, slide)
    trial = TrialPlan.of(run, schedule=WindowSchedule.fixed(0, _WINDOWS * slide, slide), public_items=None)
    code = _RealCode(trial, trial.stream_keys(SECRET))
    rows = _random_rows(mechanism.most_tests)
    fewer = rows.take(np.isin(rows.users, np.unique(rows.users)[::2]))
    replayed, (streamed, is_refused) = code.replay(rows), code.stream(rows)
    shares, found = {}, []
    for name, weights in (("replay", replayed), ("stream", streamed)):
        spent, unlisted = _spent(weights, mechanism)
        shares[name] = max(spent.values()) / mechanism.purse
        if unlisted:
            found.append(f"{name}: weights are not on the price list")
        if shares[name] > 1:
            found.append(f"{name}: a purse is overdrawn")
    if _changed(replayed, code.replay(fewer)) or code.sums(rows) != _added_up(replayed):
        found.append("replay: weights change with the events of others")
    if is_refused:
        found.append("stream: what users have left is refused where it is read again")
    if _changed(streamed, code.stream(fewer)[0]):
        found.append("stream: weights change with the events of others")
    return found, shares


def _random_rows(most_tests: int) -> Rows:
    """Most users with a few looks in some windows, four with more than a purse pays for."""
    found, drawn = [], np.random.default_rng(1)

    def add(user: int, window: int, items: Whole) -> None:
        found.append((np.full(len(items), user), np.full(len(items), window), items))

    for user in range(1, _USERS + 1):
        for window in range(_WINDOWS):
            number = drawn.integers(_MOST_PAIRS + 1) * (user % 3 > 0 or window == drawn.integers(_WINDOWS))
            add(user, window, np.unique(drawn.integers(_ITEMS, size=number)))
    many = np.arange(2 * most_tests)
    for user, window in enumerate((0, _WINDOWS // 2, _WINDOWS - 1), start=_USERS + 1):
        add(user, window, many)  # twice as many as its purse pays for, at once
        for later in range(window + 1, _WINDOWS):
            add(user, later, np.arange(drawn.integers(_ITEMS)))
    for window in range(_WINDOWS):  # a part of them in each window
        add(_USERS + 4, window, np.arange(1 + most_tests // 2))
    users, windows, items = (np.concatenate(column) for column in zip(*found, strict=True))
    return Rows(users.astype(np.uint64), windows, items)


class _RealCode:
    """What users get and pay, by the code that runs."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan, self._keys = plan, keys

    def replay(self, rows: Rows) -> Weights:
        """Each user by itself: then the sums are its weights."""
        return {(user, *cell): weight for user, own in _by_user(rows) for cell, weight in self.sums(own).items()}

    def sums(self, rows: Rows) -> Cells:
        pairs = contributions_of(rows, self._keys)
        return _cells(ItemSums.of_weights(pairs, replay_weights(pairs, self._plan, self._keys), self._keys))

    def stream(self, rows: Rows) -> tuple[Weights, bool]:
        """And whether what was stored between two windows was refused."""
        carried = Carried(SpendBudgets(self._plan, self._keys))
        pairs = contributions_of(rows, self._keys)
        found: Weights = {}
        for window in range(_WINDOWS):
            here = pairs.select(pairs.windows == window)
            carried.over_to(window)
            weights = carried.state.spend(here, window)
            carried.keep()
            found |= _weights(Rows(here.users[here.codes], here.windows, numbers_of(here.table, here.items)), weights)
        return found, carried.is_refused


def _by_user(rows: Rows) -> Iterator[tuple[int, Rows]]:
    for user in np.unique(rows.users).tolist():
        yield user, rows.take(rows.users == user)


def _cells(sums: ItemSums) -> Cells:
    cells = zip(sums.windows.tolist(), numbers_of(sums.table, sums.items).tolist(), strict=True)
    return collections.Counter(dict(zip(cells, sums.sums.tolist(), strict=True)))


def _weights(rows: Rows, weights: Whole) -> Weights:
    places = zip(*(column.tolist() for column in rows), strict=True)
    return {place: weight for place, weight in zip(places, weights.tolist(), strict=True) if weight}


def _added_up(weights: Weights) -> Cells:
    found = Cells()
    for (_, window, item), weight in weights.items():
        found[window, item] += weight
    return found


def _spent(weights: Weights, mechanism: ChargingRules) -> tuple[dict[int, int], list[int]]:
    """Units by user, at the prices of the list; and weights that are not on it."""
    units = dict(mechanism.looks_list.prices)
    spent: dict[int, int] = collections.Counter()
    for (user, _, _), weight in weights.items():
        spent[user] += units.get(weight, mechanism.purse + 1)
    return spent, [weight for weight in weights.values() if weight not in units]


def _changed(weights: Weights, fewer: Weights) -> bool:
    users = {user for user, _, _ in fewer}
    return {at: weight for at, weight in weights.items() if at[0] in users} != fewer


# ---------------------------------------------------------------------------------------------------------------------
# In rounds of looks
# ---------------------------------------------------------------------------------------------------------------------


def _broken_in_rounds(mechanism: ChargingRules, run: TrialPlan, slide: int) -> Broken:
    """A user alone cannot be told from others where they share items: so what each pays is that of items of its own."""
    rounds = dataclasses.replace(run.paid_rounds, block_seconds=2 * slide)
    trial = TrialPlan.of(run, schedule=WindowSchedule.fixed(0, _WINDOWS * slide, slide), rounds=rounds)
    rows = _random_rows(mechanism.most_tests // 3)
    users, places = np.unique(rows.users, return_inverse=True)
    size = int(rows.numbers.max()) + 1
    own, numbers = np.unique(places * size + rows.numbers, return_inverse=True)
    code = _RoundCode(trial, trial.stream_keys(SECRET), size)
    shares, found = {}, list[str]()
    for name, ends in (("replay", _WHOLE), ("parts", _PARTS)):
        alone = code.sums(rows._replace(numbers=numbers), own % size, ends)
        spent, is_listed = _spent_in_rounds(mechanism, alone, own // size, len(users))
        shares[name] = float(spent.sum(axis=0).max()) / mechanism.purse
        if not is_listed:
            found.append(f"{name}: weights are not on the price list")
        if shares[name] > 1:
            found.append(f"{name}: a purse is overdrawn")
        for number, (units, listed) in enumerate(zip(spent.max(axis=1), mechanism.purses, strict=True)):
            if units > listed.purse:
                found.append(f"{name}: the purse of round {number} is overdrawn")
        if code.not_drawn_for:
            found.append(f"{name}: users pay for pairs that are named already, or that no round draws for")
        shared = np.arange(size)
        halves = [code.sums(rows.take(places % 2 == half), shared, ends) for half in (0, 1)]
        if code.sums(rows, shared, ends) != [first + second for first, second in zip(*halves, strict=True)]:
            found.append(f"{name}: weights change with the events of others")
    return found, shares


def _spent_in_rounds(mechanism: ChargingRules, sums: list[Cells], user_of: Whole, users: int) -> tuple[Whole, bool]:
    """Units by round and user, int64[rounds, users], and whether all weights are on the list. sums: of each round.
    user_of: whose each item is."""
    units = dict(mechanism.looks_list.prices)
    spent, is_listed = np.zeros((len(sums), users), dtype=np.int64), True
    for number, cells in enumerate(sums):
        for (_, item), weight in cells.items():
            is_listed &= weight in units
            spent[number, user_of[item]] += units.get(weight, mechanism.purse + 1)
    return spent, is_listed


class _RoundCode:
    """What users add in each round, by the code that runs. By lot each item is named in a block, and each pair in some
    later round or in none, or it is left out before the last one.

    not_drawn_for: whether users have added to a pair that is not drawn for.
    """

    def __init__(self, plan: TrialPlan, keys: StreamKeys, items: int) -> None:
        self._plan, self._keys = plan, keys
        self._rounds = len(plan.units_of_rounds)
        lots = np.random.default_rng(2).integers(256, size=(2, items, _WINDOWS), dtype=np.uint8)
        self._in_block = lots[0] < _OF_BLOCKS
        self._named_in = 1 + lots[1] % (2 * self._rounds)
        self.not_drawn_for = False

    def sums(self, rows: Rows, item_of: Whole, ends: tuple[int, ...]) -> list[Cells]:
        """Of each round, through the parts of a run that end here. item_of: whose lot each item has."""
        rounds = [WeighRound(self._plan, self._keys, None, number) for number in range(len(self._plan.units_of_rounds))]
        users, found = [Carried(work) for work in rounds], [Cells() for _ in rounds]
        counts, first = collections.Counter[str](), 0
        for end in ends:
            pairs = contributions_of(rows.take((rows.windows >= first) & (rows.windows < end)), self._keys)
            firsts, named_in = self._lots(item_of, first, end)
            for number in range(len(rounds)):
                is_last = number == self._rounds - 1  # which looks again at what is named in its block
                drawn = named_in >= (1 if is_last else number)
                drawn &= ~self._left_out(named_in, number)
                told = self._told(named_in, firsts, number) if number else []
                span, carried = Span(first, end), users[number]
                sums = rounds[number].process(carried.over_to_part(span), pairs, span, counts, *told)
                carried.keep()
                of_round = _cells(sums)
                self.not_drawn_for |= not all(drawn[item, window - first] for window, item in of_round)
                found[number] += of_round
            first = end
        return found

    def _lots(self, item_of: Whole, first: int, end: int) -> tuple[Whole, Whole]:
        """The first window of the block of each window, and which round names each pair: int64[items, windows]."""
        windows, named_in = np.arange(first, end), self._named_in[item_of, first:end]
        firsts = WindowBlocks.of(self._plan, first, end).of_windows(windows)
        return firsts, np.where(self._in_block[item_of][:, firsts], named_in, 0)

    def _told(self, named_in: Whole, firsts: Whole, number: int) -> list[list[bytes]]:
        """What round 0 named in blocks, and rounds before this one in windows. named_in: int64[items, windows], the
        round that names each pair, 0 for one of another block. firsts: of the block of each window."""
        in_blocks, in_windows = (named_in > 0) & (firsts == firsts[0] + np.arange(len(firsts))), (named_in > 0)
        left_out = self._left_out(named_in, number)
        in_windows = in_windows & (named_in < number) | left_out
        table, places = ItemTable.of_labels(labels_of(len(named_in)), self._keys.hash_items)
        found = []
        for is_named in (in_blocks, in_windows):
            windows, items = np.nonzero(is_named.T[:, np.argsort(places)])
            ones = np.ones(len(windows), dtype=np.int64)
            is_out = left_out.T[:, np.argsort(places)][windows, items] & (is_named is in_windows)
            levels = np.where(is_out, -ones, ones)  # left out in this window alone
            found.append([NamedItems(firsts[0] + windows, items, levels, ones, table).select(slice(None)).to_bytes()])
        return found

    def _left_out(self, named_in: Whole, number: int) -> npt.NDArray[np.bool_]:
        """Which pairs were left out before this round."""
        leaves_out = 2 <= number == self._rounds - 1
        return np.asarray((named_in == 2 * self._rounds) & leaves_out)
