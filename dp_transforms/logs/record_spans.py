"""Many records decoded in one call, although some may be broken, and the call does not say which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from dp_transforms.logs.rejected_events import Rows

_SPLIT = 8

T = TypeVar("T")


class RecordSpans:
    """Of one block. few: less than so many records are decoded one by one at once. smallest: so many are not divided.

    After `most_failures` failed calls the rest is decoded one by one: this limits the cost of hostile records.
    """

    most_failures = 100

    def __init__(self, few: int, smallest: int) -> None:
        self._few, self._smallest, self._failed = few, smallest, 0

    def decode(
        self,
        records: list[bytes],
        together: Callable[[list[bytes]], T | None],
        one_by_one: Callable[[list[bytes]], Iterator[tuple[Rows, T]]],
        *,
        is_known_odd: bool = False,
        begin: int = 0,
    ) -> Iterator[tuple[Rows, T]]:
        """Parts, each with the rising numbers of its records: of all together; if that fails, of smaller and smaller
        spans, and of the smallest one by one.

        together: returns None if one of the records is odd. one_by_one: numbers them from 0, and leaves out broken
        ones. is_known_odd: whether all together failed already. begin: the number of the first record.
        """
        count = len(records)
        if count >= self._few and self._failed <= self.most_failures:
            part = None if is_known_odd else together(records)
            if part is not None:
                yield np.arange(begin, begin + count), part
                return
            self._failed += 1
            step = max(self._smallest, -(-count // _SPLIT))
            if step < count:
                for at in range(0, count, step):
                    yield from self.decode(records[at : at + step], together, one_by_one, begin=begin + at)
                return
        for rows, part in one_by_one(records):
            yield rows + begin, part
