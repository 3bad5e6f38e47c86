"""Looks for a hundred thousand spellings at once, in all that a run left: some hundred megabytes in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from tests.helpers.leak_search import texts_within

_KEY = 8  # bytes of a spelling by which candidates are found
_TABLE_BITS = 22
_PIECE_BYTES = 1 << 22
_BETWEEN = b"\0\xff" * _KEY  # parts texts that are searched together


class Search:
    """Finds the spellings of several kinds, each of at least eight bytes."""

    def __init__(self, kinds: Mapping[str, Iterable[bytes]]) -> None:
        self._by_key: dict[int, list[tuple[bytes, str]]] = {}
        for kind, spellings in kinds.items():
            for spelling in spellings:
                if len(spelling) < _KEY:
                    raise ValueError(f"a spelling must have at least {_KEY} bytes, got {len(spelling)}.")
                self._by_key.setdefault(int.from_bytes(spelling[:_KEY], "little"), []).append((spelling, kind))
        self._keys = np.array(sorted(self._by_key), np.uint64)
        self._table = np.zeros(1 << _TABLE_BITS, bool)
        self._table[_slots(self._keys)] = True

    def kinds_in(self, data: bytes) -> set[str]:
        """Of the spellings that stand in the data itself."""
        kinds: set[str] = set()
        for begin in range(0, len(data), _PIECE_BYTES):
            piece = np.frombuffer(data[begin : begin + _PIECE_BYTES + _KEY - 1], np.uint8)
            for offset in range(min(_KEY, max(0, len(piece) - _KEY + 1))):
                count = (len(piece) - offset) // _KEY
                words = piece[offset : offset + count * _KEY].view("<u8")
                maybe = np.flatnonzero(self._table[_slots(words)])
                nearest = np.minimum(np.searchsorted(self._keys, words[maybe]), len(self._keys) - 1)
                for at in maybe[self._keys[nearest] == words[maybe]]:
                    place = begin + offset + int(at) * _KEY
                    for spelling, kind in self._by_key[int(words[at])]:
                        if kind not in kinds and data.startswith(spelling, place):
                            kinds.add(kind)
        return kinds

    def kinds_within(self, data: bytes) -> set[str]:
        """Also of those within what is compressed or encoded in the data."""
        return self.kinds_in(_BETWEEN.join(texts_within(data)))


def _slots(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _TABLE_BITS)


def found_in(search: Search, places: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """(place, kind) of whatever was found."""
    for place, data in places.items():
        for kind in sorted(search.kinds_within(data)):
            yield place, kind
