"""Every keyed function of a run: AES-256 under HMAC-SHA256 of the secret, its purpose and its context. By hand here."""

from __future__ import annotations

import functools
import hmac
import itertools
import math
import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dp_transforms.mechanisms.papers.noise_source import SecretNoise
from dp_transforms.mechanisms.randomness import StreamKeys, Words

SECRET = bytes(range(32))
RUN = ("run", "plan", "stream", 5)
FIRST, SECOND = (3 << 64) + 7, (2**63 << 64) + 11
USER = 2**63 + 12345


def stream_keys(secret: bytes = SECRET) -> StreamKeys:
    return StreamKeys(secret, run_id="run", plan_fingerprint="plan", stream="stream", threshold=5)


def rows(value: int) -> Words:
    return np.array([[value >> 64, value & (2**64 - 1)]], dtype=np.uint64)


def chained(purpose: str, *context: str | int, blocks: tuple[int, ...], secret: bytes = SECRET) -> tuple[int, int]:
    """CBC-MAC of the blocks under the key of a purpose."""
    parts = [str(part).encode() for part in (purpose, *context)]
    message = b"shh v1" + b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    key = hmac.new(secret, message, "sha256").digest()
    encryptor = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor()
    data = b"".join(struct.pack("<QQ", block >> 64, block & (2**64 - 1)) for block in blocks)
    high, low = struct.unpack("<QQ", encryptor.update(data)[-16:])
    return high, low


def text_blocks(text: bytes) -> tuple[int, ...]:
    """Its length, and its bytes filled up with zeros."""
    data = struct.pack("<Q", len(text)) + text
    data += bytes(-len(data) % 16)
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    return tuple((high << 64) + low for high, low in zip(words[::2], words[1::2], strict=True))


PAIR = (FIRST, SECOND)
CASES: dict[str, tuple[Callable[[StreamKeys], Words], tuple[str | int, ...], tuple[int, ...]]] = {
    "user ids": (lambda keys: keys.hash_users(pa.array(["ünï"])), ("user ids",), text_blocks("ünï".encode())),
    "item ids": (lambda keys: keys.hash_items(pa.array(["x" * 30])), ("item ids",), text_blocks(b"x" * 30)),
    "holders": (lambda keys: keys.widen_users(np.array([USER], dtype=np.uint64)), ("holders",), (USER << 64,)),
    "contributions": (
        lambda keys: keys.contribution_order(9)(rows(FIRST)),
        ("contributions", "stream", 9),
        (FIRST,),
    ),
    "pass": (lambda keys: keys.pass_uniforms(9).of_pairs(rows(FIRST), rows(SECOND)), ("pass", *RUN, 9), PAIR),
    "noise": (lambda keys: keys.noise_uniforms(9).of_pairs(rows(FIRST), rows(SECOND)), ("noise", *RUN, 9), PAIR),
    "noise pair": (
        lambda keys: keys.noise_pair_uniforms(9, 4).of_pairs(rows(FIRST), rows(SECOND)),
        ("noise pair", *RUN, 9, 4),
        PAIR,
    ),
    "zero items": (lambda keys: keys.empty_item_uniforms()(rows(FIRST)), ("zero items", *RUN), (FIRST,)),
    "looks": (
        lambda keys: keys.look_uniforms()(np.array([9]), rows(FIRST), rows(SECOND)),
        ("looks", *RUN),
        (9 << 64, *PAIR),
    ),
    "look noise": (
        lambda keys: keys.look_noise_uniforms()(np.array([9]), rows(FIRST), rows(SECOND)),
        ("look noise", *RUN),
        (9 << 64, *PAIR),
    ),
    "counts": (
        lambda keys: keys.count_uniforms()(np.array([9]), rows(FIRST), rows(SECOND)),
        ("counts", *RUN),
        (9 << 64, *PAIR),
    ),
    "look order": (
        lambda keys: keys.look_order()(np.array([USER], dtype=np.uint64), np.array([9]), rows(FIRST)),
        ("look order", "stream"),
        ((USER << 64) + 9, FIRST),
    ),
    "weighted holders": (
        lambda keys: keys.widen_holders(np.array([USER], dtype=np.uint64), np.array([12_000])),
        ("weighted holders",),
        ((USER << 64) + 12_000,),
    ),
}


@pytest.mark.parametrize("purpose", CASES)
@pytest.mark.parametrize("secret", [SECRET, bytes(32), b"\xff" * 48])
def test_each_function_is_aes_under_a_key_made_from_the_secret(purpose: str, secret: bytes) -> None:
    """A function whose key knows no secret could be computed by anybody, and the noise with it."""
    found, context, blocks = CASES[purpose]
    assert [tuple(row) for row in found(stream_keys(secret)).tolist()] == [
        chained(*context, blocks=blocks, secret=secret)  # type: ignore[arg-type]
    ]


def test_users_are_widened_row_by_row() -> None:
    users = np.array([0, 1, 2**64 - 1, 1], dtype=np.uint64)
    widened = [tuple(row) for row in stream_keys().widen_users(users).tolist()]
    assert widened == [chained("holders", blocks=(user << 64,)) for user in users.tolist()]
    assert stream_keys().widen_users(users[:0]).shape == (0, 2)


@pytest.mark.parametrize("key", [SECRET, bytes(32), b"\xff" * 48])
def test_draws_of_a_source_are_aes_in_counter_mode_under_its_key(key: bytes) -> None:
    """Block number n, by whichever call: none comes twice, and none without the key."""
    source, found = SecretNoise(key), []
    for count in (3, 0, 1, 260):
        found += [tuple(row) for row in source.uniforms(count).tolist()]
    assert found == [chained("draws in order", blocks=(number << 64,), secret=key) for number in range(264)]


@pytest.mark.parametrize("limit", [2**128, 2**128 + 1, 3 * 2**127, 2**300 - 1])
def test_whole_numbers_below_a_large_limit_are_the_first_bits_of_their_blocks(limit: int) -> None:
    """Each try takes as many blocks as hold the bits of ``limit - 1``, and is thrown away where it is not below."""
    bits = len(bin(limit - 1)) - 2
    each = math.ceil(bits / 128)
    words = (int(high) << 64 | int(low) for high, low in SecretNoise(SECRET).uniforms(2000).tolist())
    drawn, source = [], SecretNoise(SECRET)
    while len(drawn) < 50:
        tried = functools.reduce(lambda value, word: value << 128 | word, itertools.islice(words, each), 0)
        if (value := tried >> (128 * each - bits)) < limit:
            drawn.append(value)
    assert [source._uniform_below(limit) for _ in range(50)] == drawn
