"""Public items that nobody holds: which are drawn (what is published of them: tests/privacy/test_full_enumeration.py).

Each test rejects a correct draw with probability 1e-6 over the key (fixed here), and has a twin that it must reject."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dp_transforms.core import public_items
from dp_transforms.core.public_items import EmptyItems, binomial_integers
from tests.helpers.sampling_checks import chi_squared_rejects, stream_keys

ONE = 1 << 128
WINDOWS = 6_000


class FirstPositions(EmptyItems):
    """As many as it should, always the same ones."""

    def _positions(self, window, count):
        return np.arange(count)


class OneForTwoWindows(EmptyItems):
    """Uniforms of every second window alone."""

    def _draw(self, windows, numbers):
        return super()._draw(windows // 2, numbers)


def draws_of(size, share, kind=EmptyItems):
    return kind(range(size), int(share * 2**53) << 75, stream_keys().empty_item_uniforms())


def subsets_reject(draws, size, share):
    """Chi-squared over all subsets of a small list: number, choice and independence at once."""
    observed = dict.fromkeys(
        (subset for count in range(size + 1) for subset in itertools.combinations(range(size), count)), 0
    )
    for _, positions in draws.by_window(0, WINDOWS):
        observed[tuple(positions.tolist())] += 1
    observed[()] = WINDOWS - sum(observed.values())
    expected = [WINDOWS * share ** len(subset) * (1 - share) ** (size - len(subset)) for subset in observed]
    return chi_squared_rejects(list(observed.values()), expected)


@pytest.mark.parametrize(("size", "share"), [(4, 0.3), (5, 0.5)])
def test_every_subset_has_its_probability(size, share):
    assert not subsets_reject(draws_of(size, share), size, share)
    if size == 4:
        assert subsets_reject(draws_of(4, 0.3, FirstPositions), 4, 0.3)
        assert subsets_reject(draws_of(4, 0.33), 4, 0.3)


def pairs_of_windows_reject(draws):
    """One item, two windows one after the other: four outcomes."""
    is_drawn = np.zeros(WINDOWS, dtype=np.int64)
    for window, _ in draws.by_window(0, WINDOWS):
        is_drawn[window] = 1
    observed = np.bincount(2 * is_drawn[::2] + is_drawn[1::2], minlength=4)
    return chi_squared_rejects(observed, WINDOWS / 2 * np.array([0.49, 0.21, 0.21, 0.09]))


def test_windows_are_independent():
    assert not pairs_of_windows_reject(draws_of(1, 0.3))
    assert pairs_of_windows_reject(draws_of(1, 0.3, OneForTwoWindows))


def test_many_windows_are_drawn_in_slices_that_leave_none_out_and_repeat_none(monkeypatch):
    """Each window as if it were drawn alone."""
    monkeypatch.setattr(public_items, "_WINDOWS_AT_ONCE", 7)
    draws = draws_of(5, 0.3)
    drawn = [(window, items.tolist()) for window, items in draws.by_window(0, 100)]
    assert drawn == [(at, items.tolist()) for window in range(100) for at, items in draws.by_window(window, window + 1)]
    assert len(drawn) > 60, "of 83 on average"
    assert list(draws_of(5, 0).by_window(0, 9)) == []


def positions_of(words, size, count):
    """The positions that these words lead to: word n - 1 is the high half of the uniform with number n."""

    def uniforms(blocks):
        assert (blocks[:, 0] == 4).all()
        assert len(blocks) < 1000, "the last word comes over and over, and is not taken"
        high = [words[min(number, len(words)) - 1] for number in blocks[:, 1].tolist()]
        return np.stack([np.array(high, dtype=np.uint64), np.full(len(high), 2**64 - 1, dtype=np.uint64)], axis=1)

    return EmptyItems(range(size), 1, uniforms)._positions(4, count).tolist()


@pytest.mark.parametrize("size", [3, 1000, 10**6 + 3])
def test_words_beyond_the_last_whole_multiple_of_the_domain_are_skipped(size):
    """As many words lead to each position, then: no draw could show the difference, so the words are chosen here."""
    last = 2**64 - 2**64 % size - 1
    for skipped in ([2**64 - 1], [last + 1], [2**64 - 1, last + 1] * 20):
        assert positions_of([*skipped, last], size, 1) == [size - 1]
        assert positions_of([*skipped, 0], size, 1) == [0]


def test_words_of_a_position_that_is_taken_are_skipped():
    assert positions_of([8, 2**64 - 1, 1, 15, 6, 0], 7, 2) == [1, 6]
    assert positions_of([2**64 - 8, 2**64 - 3, 2**64 - 8, 1], 8, 3) == [0, 1, 5], "where 8 divides all words"


def test_the_table_of_the_binomial_is_exact():
    """Against rational numbers; and in large domains the table ends where nothing is left."""
    for size, tail in ((1, ONE // 3), (7, ONE // 5 + 12345), (40, 1 << 100), (12, ONE - 5), (300, ONE // 2)):
        share, below, expected = Fraction(tail, ONE), Fraction(0), []
        for count in range(size):
            below += math.comb(size, count) * share**count * (1 - share) ** (size - count)
            expected.append(int(below * ONE))
        found = binomial_integers(size, tail)
        assert all(abs(one - other) <= 1 for one, other in zip(found, expected, strict=False))
        assert all(entry >= ONE - 2 for entry in expected[len(found) :])
    assert 30 < len(binomial_integers(10**7, int(ONE * 1e-7))) < 40
    assert binomial_integers(10**7, 0) == []
