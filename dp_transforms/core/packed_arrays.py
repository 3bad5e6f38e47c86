"""Numpy arrays to opaque bytes and back, for a shuffle: Beam would encode anything else element by element.

A few microseconds a batch. An Arrow IPC stream takes thirty, and cannot hold columns of different lengths.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

_MAGIC = b"SHH1"
_DTYPES = (np.dtype("<u1"), np.dtype("<u4"), np.dtype("<i8"), np.dtype("<u8"), np.dtype("<u2"))

Packed = bytes | memoryview
Kind = tuple[np.dtype, ...]
BYTES, WORDS, WHOLE, HASHES, _SHORTS = ((dtype,) for dtype in _DTYPES)
NARROW: Kind = (*BYTES, *_SHORTS, *WORDS)  # what `narrowest` returns


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
    """The same values, each from 0 to 2^32 - 1, in the narrowest dtype that packs: a shuffle costs several copies."""
    largest = int(values.max()) if len(values) else 0
    return values.astype(np.uint8 if largest < 1 << 8 else np.uint16 if largest < 1 << 16 else np.uint32)
