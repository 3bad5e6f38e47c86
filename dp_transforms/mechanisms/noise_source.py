"""The one source of noise of the mechanisms that run alone: exact draws, one after the other, from a secret key.

A mechanism is given a `NoiseSource` and asks it for nothing but these three kinds of draw, so a test can put every
possible outcome in its place. In the pipeline draws are keyed by what they are for instead (`randomness.StreamKeys`).
"""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dp_transforms.arguments import check_whole, is_number
from dp_transforms.mechanisms.discrete_laplace import WideDiscreteLaplace, discrete_laplace, wide_discrete_laplace
from dp_transforms.mechanisms.randomness import MIN_KEY_BYTES, BlockFunction, Words, derive_key
from dp_transforms.noise_distribution import UNIFORM_BITS

_DRAWS_AT_ONCE = 256
_LARGEST_TABLE_SCALE = 100.0  # beyond, two short tables are made sooner than one long one
_WORD = 1 << 64


class NoiseSource(Protocol):
    """Where a mechanism's randomness comes from. Draws are independent."""

    def discrete_laplace(self, epsilon: float) -> int:
        """``Pr[Z = z] = (1 - a)/(1 + a) a^|z|`` with ``a = exp(-epsilon)``."""
        ...

    def bernoulli(self, probability: float) -> bool:
        """True with this probability, which must lie in [0, 1]."""
        ...

    def choose(self, weights: Sequence[int]) -> int:
        """A position, with probability proportional to its weight: whole numbers >= 0, not all 0."""
        ...


class SecretNoise:
    """Draws from AES-256 in counter mode under a key that nobody else has.

    key: at least 32 bytes; None draws one from the operating system. Two sources with one key repeat each other's
    draws: never use a key twice on different data. Every draw is exact up to a total variation below 2^-90
    (`noise_distribution.sampling_total_variation`).
    """

    def __init__(self, key: bytes | None = None) -> None:
        key = os.urandom(MIN_KEY_BYTES) if key is None else key
        _check_key(key)
        self._function = BlockFunction(derive_key(key, "draws in order"))
        self._next_block = 0
        self._waiting: dict[float, collections.deque[int]] = {}

    def uniforms(self, count: int) -> Words:
        """uint64[count, 2]: the next 128-bit uniform integers."""
        check_whole("count", count, 0)
        blocks = np.zeros((count, 2), dtype=np.uint64)
        blocks[:, 0] = np.arange(self._next_block, self._next_block + count, dtype=np.uint64)
        self._next_block += count
        return self._function(blocks)

    def discrete_laplace_array(self, epsilon: float, count: int) -> npt.NDArray[np.int64]:
        """int64[count]: that many independent draws at once."""
        epsilon = _real("epsilon", epsilon)
        check_whole("count", count, 0)
        if epsilon * _LARGEST_TABLE_SCALE >= 1:
            return discrete_laplace(epsilon).sample(self.uniforms(count))
        each = WideDiscreteLaplace.UNIFORMS
        return wide_discrete_laplace(epsilon).sample(self.uniforms(count * each).reshape(count, each, 2))

    def discrete_laplace(self, epsilon: float) -> int:
        epsilon = _real("epsilon", epsilon)
        waiting = self._waiting.get(epsilon)
        if not waiting:
            draws = self.discrete_laplace_array(epsilon, _DRAWS_AT_ONCE)
            waiting = self._waiting[epsilon] = collections.deque(draws.tolist())
        return waiting.popleft()

    def bernoulli(self, probability: float) -> bool:
        probability = _real("probability", probability)
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], got {probability!r}.")
        numerator, denominator = probability.as_integer_ratio()
        return self._uniform_below(1 << UNIFORM_BITS) * denominator < numerator << UNIFORM_BITS

    def choose(self, weights: Sequence[int]) -> int:
        whole = [int(weight) if isinstance(weight, (int, np.integer)) else -1 for weight in weights]
        if min(whole, default=-1) < 0 or not any(whole):
            raise ValueError("weights must be whole numbers >= 0, and one of them > 0.")
        left = self._uniform_below(sum(whole))
        for position, weight in enumerate(whole):
            if left < weight:
                return position
            left -= weight
        raise AssertionError("unreachable: the weights add up to more than what was drawn")

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


def _real(name: str, value: object) -> float:
    """The value as a float of Python, so that equal numbers share a table."""
    if not is_number(value):
        raise ValueError(f"{name} must be a number, got {value!r}.")
    return float(value)  # type: ignore[arg-type]


def _check_key(key: object) -> None:
    if not isinstance(key, (bytes, bytearray)) or len(key) < MIN_KEY_BYTES:
        got = f"{len(key)}" if isinstance(key, (bytes, bytearray)) else type(key).__name__
        raise ValueError(f"the key must have at least {MIN_KEY_BYTES} bytes, got {got}. Use None for a fresh one.")
