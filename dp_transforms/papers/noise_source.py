"""What mechanisms that run alone share: exact draws, one after the other, from a secret key; and that they halt.

A mechanism takes a `NoiseSource` and uses only its three kinds of draw, so a test can put every possible outcome in its
place. The pipeline does not use this: there, each draw has a key of its own (`randomness.StreamKeys`).
"""

from __future__ import annotations

import bisect
import itertools
import os
import threading
from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import UNIFORM_BITS
from dp_transforms.checks import check_positive, check_range, check_whole, is_number, shown
from dp_transforms.core.noise_table import WideDiscreteLaplace, discrete_laplace, wide_discrete_laplace
from dp_transforms.core.randomness import MIN_KEY_BYTES, BlockFunction, Words, derive_key
from dp_transforms.errors import InputError

_LARGEST_TABLE_SCALE = 100.0  # beyond, two short tables are faster to make than one long one
_WORD = 1 << 64


class Halted(RuntimeError):  # noqa: N818
    """The mechanism has halted and answers no more queries. A new one on the same data costs its whole budget again.

    Halting depends on published results and declared limits alone, so this error may be published too.
    """


class NoiseSource(Protocol):
    """Where a mechanism's randomness comes from. Draws are independent."""

    def discrete_laplace(self, epsilon: float) -> int:
        """``Pr[Z = z] = (1 - a)/(1 + a) a^|z|`` with ``a = exp(-epsilon)``."""
        ...

    def bernoulli(self, probability: float) -> bool:
        """True with this probability, which must lie in [0, 1]. For private computations of your own."""
        ...

    def choose(self, weights: Sequence[int]) -> int:
        """A position, with probability proportional to its weight: whole numbers >= 0, not all 0."""
        ...


class SecretNoise:
    """Draws from AES-256 in counter mode, with a key that nobody else has.

    Guarantee: no draw is handed out twice, also not to several threads; every draw is exact up to a total variation
    below 2^-90 (`discrete_laplace_law.sampling_total_variation`).

    key: None, the right choice, takes a fresh one from the operating system. A key of your own, at least 32 bytes, is
    for tests and for repeating a computation on the same data. Anybody who knows it, say from a script, can subtract
    the noise from what was published: all privacy is gone. The same holds if a key is used twice on different data.

    A source belongs to the process that made it, and cannot be copied or pickled: its copy would repeat its draws. In
    another process, such as the child of a fork, each draw raises RuntimeError; make a new source there.

    >>> noise = SecretNoise()
    >>> -1000 < noise.discrete_laplace(0.5) < 1000, noise.choose([0, 3, 0])
    (True, 1)
    """

    def __init__(self, key: bytes | None = None) -> None:
        key = os.urandom(MIN_KEY_BYTES) if key is None else key
        if not isinstance(key, (bytes, bytearray)) or len(key) < MIN_KEY_BYTES:
            got = len(key) if isinstance(key, (bytes, bytearray)) else type(key).__name__
            raise ValueError(f"the key must have at least {MIN_KEY_BYTES} bytes, got {got}. Use None for a fresh one.")
        self._function = BlockFunction(derive_key(key, "draws in order"))
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._next_block = 0

    def uniforms(self, count: int) -> Words:
        """uint64[count, 2]: the next 128-bit uniform integers."""
        check_whole("count", count, 0)
        # Before the lock is taken: another thread may have held it when the process was forked.
        if os.getpid() != self._process:
            raise RuntimeError(
                "this SecretNoise was made by another process, which draws the same noise. Make a new one, and a new "
                "mechanism with a budget of its own, in this process."
            )
        blocks = np.zeros((count, 2), dtype=np.uint64)
        with self._lock:
            first = self._next_block
            self._next_block = first + count
            blocks[:, 0] = np.arange(first, first + count, dtype=np.uint64)
            return self._function(blocks)

    def discrete_laplace_array(self, epsilon: float, count: int) -> npt.NDArray[np.int64]:
        """int64[count]: that many independent draws at once. Equal numbers of any type share a table."""
        epsilon = check_positive("epsilon", epsilon)
        check_whole("count", count, 0)
        if epsilon * _LARGEST_TABLE_SCALE >= 1:
            return discrete_laplace(epsilon).sample(self.uniforms(count))
        each = WideDiscreteLaplace.UNIFORMS
        return wide_discrete_laplace(epsilon).sample(self.uniforms(count * each).reshape(count, each, 2))

    def discrete_laplace(self, epsilon: float) -> int:
        return int(self.discrete_laplace_array(epsilon, 1)[0])

    def bernoulli(self, probability: float) -> bool:
        check_range("probability", probability, 0, 1)
        numerator, denominator = float(probability).as_integer_ratio()
        return self._uniform_below(1 << UNIFORM_BITS) * denominator < numerator << UNIFORM_BITS

    def choose(self, weights: Sequence[int]) -> int:
        whole = [int(weight) if isinstance(weight, (int, np.integer)) else -1 for weight in weights]
        if min(whole, default=-1) < 0 or not any(whole):
            raise ValueError("weights must be whole numbers >= 0, and at least one of them > 0.")
        sums = list(itertools.accumulate(whole))
        return bisect.bisect_right(sums, self._uniform_below(sums[-1]))

    def __reduce__(self) -> NoReturn:
        """What copying and pickling call."""
        raise TypeError("a SecretNoise cannot be copied or pickled: both would draw the same noise. Make a new one.")

    def _uniform_below(self, limit: int) -> int:
        """A uniform integer in [0, limit), by rejection: exact."""
        bits = (limit - 1).bit_length()
        blocks = max(1, -(-bits // UNIFORM_BITS))
        while True:
            drawn = 0
            for high, low in self.uniforms(blocks).tolist():
                drawn = drawn << UNIFORM_BITS | high * _WORD + low
            drawn >>= blocks * UNIFORM_BITS - bits
            if drawn < limit:
                return drawn


def check_small_delta(name: str, value: object) -> None:
    """Of a mechanism: 0 is a pure one. Raises InputError unless it is a number in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:  # type: ignore[operator]
        raise InputError(name, f"must lie in [0, 1), got {shown(value)}.", "Use 0, or a small one such as 1e-9.")
