"""Who holds what in which window; keyed hashes, and draws of noise from them."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from dp_transforms.accounting.discrete_laplace_law import upper_tail_integers
from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.core.randomness import StreamKeys
from tests.helpers.trial_plan import TrialPlan

ONE = 1 << 128
WORD = 1 << 64

Event = tuple[str, str, int]  # user, item, time in microseconds since 1970
Held = Mapping[int, Mapping[str, Collection[str]]]  # window, user: items
Hash = tuple[int, int]


def items_by_window_and_user(log: Iterable[Event] | Held, settings: TrialPlan) -> dict[int, dict[str, set[str]]]:
    """``{window: {user: items}}`` of the events in the declared range. Window 0 is the first that ends in it."""
    if isinstance(log, Mapping):  # they were found before
        return {window: {user: set(items) for user, items in users.items()} for window, users in log.items()}
    schedule = settings.schedule
    start, end, size, slide = (
        1_000_000 * seconds
        for seconds in (
            schedule.start_seconds,
            schedule.end_seconds,
            schedule.window_seconds,
            schedule.slide_seconds,
        )
    )
    items_of: dict[int, dict[str, set[str]]] = {}
    for user, item, time in log:
        if not start <= time < end:
            continue
        begin = time - (time - start) % slide  # of the last window that holds the event
        while begin + size > time:
            window = (begin + size - slide - start) // slide
            items_of.setdefault(window, {}).setdefault(user, set()).add(item)
            begin -= slide
    return items_of


def integer_of(row: np.ndarray) -> int:
    return int(row[0]) * WORD + int(row[1])


def words_of(*values: int) -> np.ndarray:
    return np.array([divmod(value % ONE, WORD) for value in values], dtype=np.uint64).reshape(-1, 2)


def hash_all(hasher: Callable[..., Any], names: Iterable[str]) -> dict[str, Hash]:
    ordered = sorted(names)
    hashes = hasher(pa.array(ordered, pa.string()))
    return {name: (int(row[0]), int(row[1])) for name, row in zip(ordered, hashes, strict=True)}


class Tails:
    """The law of the noise of one sum, in integers: probabilities of 2^128."""

    def __init__(self, tails: Sequence[int]) -> None:
        """tails: Pr[Z >= m] for m = 1, 2, ..."""
        self._tails, self.reach = tails, len(tails)
        self._rising = [*reversed(tails), *(ONE - tail for tail in tails)]  # of reach, ..., 1, 0, ..., 1 - reach

    def tail(self, margin: int) -> int:
        """Pr[Z >= margin]."""
        if margin < 1:
            return ONE - self.tail(1 - margin)
        return self._tails[margin - 1] if margin <= len(self._tails) else 0

    def invert(self, uniform: int) -> int:
        """The largest z with uniform < tail(z)."""
        return len(self._tails) - bisect.bisect_right(self._rising, uniform)


@functools.cache
def tails_of(noise: ExponentialPower | float) -> Tails:
    """noise: or epsilon of discrete Laplace noise. Made once: a table is dear."""
    return Tails(upper_tail_integers(noise) if isinstance(noise, float) else noise.upper_tail_integers())


def empty_items(
    window: int, items: Collection[str], item_hash: Mapping[str, Hash], tail: int, keys: StreamKeys
) -> set[str]:
    """Public items that are published if nobody holds them: as many as a binomial number, all subsets of that size
    alike. tail: the probability of each, of 2^128."""
    ordered = sorted(items, key=lambda name: item_hash[name])
    function = keys.empty_item_uniforms()

    def uniform(number: int) -> int:
        return integer_of(function(np.array([[window, number]], dtype=np.uint64))[0])

    share, size = Fraction(tail, ONE), len(ordered)
    count, below = 0, (1 - share) ** size
    while count < size and uniform(0) >= int(below * ONE):
        count += 1
        below += math.comb(size, count) * share**count * (1 - share) ** (size - count)
    wanted = min(count, size - count) if 2 * count > size else count
    chosen: list[str] = []
    number = 0
    while len(chosen) < wanted:
        number += 1
        word = uniform(number) // WORD
        if word < WORD // size * size and ordered[word % size] not in chosen:
            chosen.append(ordered[word % size])
    return set(chosen) if wanted == count else set(ordered) - set(chosen)
