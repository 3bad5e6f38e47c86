"""Counts of named items through the real code: against their exact law, and new for other windows and other holders.

Whatever the names are, what is counted follows from them alone. So here every item of every copy is counted: one that
the user holds with a few others, and one that nobody holds, in two windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.audit.names.copies import Whole, all_counted, item_pairs_of_numbers, numbers_of
from dp_transforms.audit.names.mechanism import NamesMechanism
from dp_transforms.audit.names.noise_law import NoiseLaw, Values
from dp_transforms.audit.statistics import multinomial_p_value
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor import named_counts
from dp_transforms.monitor.naming_settings import NamingSettings

_MOST_COPIES = 5_000
_OTHERS = 3
_WINDOWS = 2
_HELD, _EMPTY = 0, 1  # the items of a copy
_NAMES = ("held items", "items that nobody holds")
_EDGES, _FEW_EDGES = np.arange(-1.5, 1.6, 0.25), np.arange(-0.5, 0.6, 0.5)  # of bins around the count, in scales


class _Cell(NamedTuple):
    """counts: what is published of it, int64[copies]. holders: how many there are."""

    counts: Whole
    holders: int

    def bins(self, edges: Values, law: NoiseLaw) -> tuple[Whole, Values]:
        """In which bin each count is, and the probability of each. What is below 1 is published as 0."""
        bounds = np.unique(np.maximum(1, self.holders + np.round(edges * law.scale).astype(np.int64)))
        tails = np.exp(law.log_tail(bounds - self.holders))
        return np.searchsorted(bounds, self.counts, side="right"), -np.diff([1.0, *tails, 0.0])


def count_p_values(
    mechanism: NamesMechanism, settings: NamingSettings, runs: int, secret: bytes
) -> Iterator[tuple[str, float]]:
    """Of the tests, each with its name."""
    law = NoiseLaw.whole(2.0, mechanism.count_scale)
    run = dataclasses.replace(settings, run_id=f"{settings.run_id}, counts")
    worlds = {who: _cells(run, min(runs, _MOST_COPIES), secret, who == "with") for who in ("with", "without")}
    for who, cells in worlds.items():
        for (window, item), cell in cells.items():
            seen, masses = cell.bins(_EDGES, law)
            name = f"counts of {_NAMES[item]}, window {window + 1}, {who} the user"
            yield name, multinomial_p_value(np.bincount(seen, minlength=len(masses)), masses)
        for item, name in enumerate(_NAMES):
            yield f"counts of {name}, in two windows, {who} the user", _together(cells[0, item], cells[1, item], law)
    yield "counts with other holders", _together(worlds["with"][0, _HELD], worlds["without"][0, _HELD], law)


def _together(first: _Cell, second: _Cell, law: NoiseLaw) -> float:
    """Whether the two are independent."""
    (seen, masses), (other, more) = first.bins(_FEW_EDGES, law), second.bins(_FEW_EDGES, law)
    pairs = np.bincount(seen * len(more) + other, minlength=len(masses) * len(more))
    return multinomial_p_value(pairs, np.outer(masses, more))


def _cells(settings: NamingSettings, copies: int, secret: bytes, with_user: bool) -> dict[tuple[int, int], _Cell]:
    """By window and item. Both windows have the same holders, if as many pairs of a user count."""
    keys = settings.stream_keys(secret)
    windows_held = min(_WINDOWS, settings.counts_per_user)
    counts = _published(settings, keys, copies, _OTHERS + with_user, windows_held)
    held = [(_OTHERS + with_user) * (window < windows_held) for window in range(_WINDOWS)]
    return {
        (window, item): _Cell(counts[window, :, item], held[window] * (item == _HELD))
        for window in range(_WINDOWS)
        for item in (_HELD, _EMPTY)
    }


def _published(
    settings: NamingSettings, keys: StreamKeys, copies: int, holders: int, windows_held: int
) -> npt.NDArray[np.int64]:
    """int64[windows, copies, items]."""
    copy = np.repeat(np.arange(copies), holders)
    user = np.arange(copies * holders).astype(np.uint64)
    windows = np.repeat(np.arange(windows_held), len(user))
    numbers = np.tile(2 * copy + _HELD, windows_held)
    pairs = item_pairs_of_numbers(np.tile(user, windows_held), windows, numbers, keys)
    counted = all_counted(_WINDOWS, 2 * copies, keys)
    held_by = named_counts.count_holders(pairs, counted, settings, keys)
    drawn = named_counts.draw_counts(counted, held_by, settings, keys)
    published = np.empty((_WINDOWS, 2 * copies), dtype=np.int64)
    published[counted.windows, numbers_of(counted.table, counted.items)] = drawn
    return published.reshape(_WINDOWS, copies, 2)
