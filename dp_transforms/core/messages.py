"""What travels between steps, as bytes: arrays packed into one string, and messages that are gathered by counting.

Beam would encode anything else element by element. An Arrow IPC stream takes ten times as long for a small table, and
cannot hold columns of different lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST_MESSAGE_BYTES = 8_000_000  # engines refuse values of 80 MB, and copy each one several times
_MAGIC = b"SHH1"
_DTYPES = (np.dtype("<u1"), np.dtype("<u4"), np.dtype("<i8"), np.dtype("<u8"), np.dtype("<u2"))

Packed = bytes | memoryview
Kind = tuple[np.dtype, ...]
BYTES, WORDS, WHOLE, HASHES, _SHORTS = ((dtype,) for dtype in _DTYPES)
NARROW: Kind = (*BYTES, *_SHORTS, *WORDS)


def pack_arrays(*arrays: npt.NDArray) -> bytes:
    """One-dimensional arrays of uint8, uint16, uint32, int64 or uint64."""
    headers = [struct.pack("<4sI", _MAGIC, len(arrays))]
    headers += [struct.pack("<IQ", _DTYPES.index(array.dtype), len(array)) for array in arrays]
    return b"".join([*headers, *(array.tobytes() for array in arrays)])


def unpack_arrays(data: Packed, *kinds: Kind) -> list[npt.NDArray]:
    """Inverse of `pack_arrays`; the arrays are read-only views of the bytes.

    kinds: for each array the types that it may have; none: arrays of any number and type.
    Raises ValueError for any other bytes, also cut or longer ones, and for other arrays.
    """
    if len(data) < 8 or data[:4] != _MAGIC:
        raise ValueError("the bytes are not packed arrays of this version.")
    count = int.from_bytes(data[4:8], "little")
    position = 8 + 12 * count
    check_unpacked(position <= len(data) and (not kinds or len(kinds) == count))
    arrays = []
    for index in range(count):
        dtype_index, length = struct.unpack_from("<IQ", data, 8 + 12 * index)
        check_unpacked(dtype_index < len(_DTYPES))
        dtype = _DTYPES[dtype_index]
        check_unpacked(length * dtype.itemsize <= len(data) - position)
        check_unpacked(not kinds or dtype in kinds[index])
        arrays.append(np.frombuffer(data, dtype, length, position))
        position += length * dtype.itemsize
    check_unpacked(position == len(data))
    return arrays


def check_unpacked(fits: bool | np.bool_) -> None:
    """Raises ValueError unless what was unpacked fits together."""
    if not fits:
        raise ValueError("the packed arrays are damaged. Go on from an older state, or start the run again.")


def narrowest(values: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """The same values, at least 0, in the narrowest dtype that packs: a shuffle costs several copies."""
    bits = int(values.max(initial=0)).bit_length()
    return values.astype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.int64)


# Messages that are gathered by counting.
#
# What belongs to one shard of one window travels in messages of bounded size. The last message of a sender announces
# how many the sender sends, itself included. A window is complete when all its senders have announced and as many
# messages have come (`beam.turns`). No timer decides it, so what is gathered does not depend on the order of delivery
# or on restarts.

EncodedMessage = tuple[int, int, bytes]  # the fields of a `Message`, as engines encode them
ToShard = tuple[int, EncodedMessage]  # what travels: all windows of a shard have one key, since their order counts


class Message(NamedTuple):
    """From one sender to one shard, for one window.

    announced: on the last message of its sender for the window, how many messages this sender sends, this one included;
        0 on all others.
    blob: packed content; empty for none.
    """

    window: int
    announced: int
    blob: bytes


def messages_of(window: int, blobs: list[bytes]) -> list[Message]:
    """All that one sender has for one shard of one window, as messages. The last one announces them."""
    *first, last = blobs or [b""]
    return [*(Message(window, 0, blob) for blob in first), Message(window, len(first) + 1, last)]


def batches_of_blobs(blobs: Iterable[bytes], most_bytes: int = MOST_MESSAGE_BYTES) -> list[list[bytes]]:
    """The blobs in order, in batches that engines accept; no blob is cut. One empty batch for no blobs."""
    batches: list[list[bytes]] = [[]]
    size = 0
    for blob in blobs:
        if batches[-1] and size + len(blob) > most_bytes:
            batches.append([])
            size = 0
        batches[-1].append(blob)
        size += len(blob)
    return batches
