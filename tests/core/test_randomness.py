"""Keyed hashes and draws against their definitions."""

import hashlib
import hmac
import re
import struct

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.checks import MAKE_A_KEY
from dp_transforms.core.randomness import (
    MIN_KEY_BYTES,
    IdHasher,
    StreamKeys,
    derive_key,
    sum_modulo_2_128,
)
from tests.reference.log import ONE, integer_of, words_of

KEY = bytes(range(32))


def cbc_mac(message, key=KEY):
    """The last block of AES-CBC with a zero vector, as two little-endian words."""
    encryptor = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor()
    return struct.unpack("<QQ", encryptor.update(message)[-16:])


def oracle_hash(text):
    data = text.encode()
    if len(data) > 1032:
        return cbc_mac(struct.pack("<QQ", len(data), 0) + hashlib.blake2b(data).digest())
    message = struct.pack("<Q", len(data)) + data
    return cbc_mac(message + bytes(-len(message) % 16))


def hash_rows(array):
    return [(int(high), int(low)) for high, low in IdHasher(KEY)(array)]


# Lengths at which the number of blocks changes, and the longest one that is not reduced first.
LENGTHS = [0, 1, 7, 8, 9, 23, 24, 25, 39, 40, 41, 1015, 1016, 1017, 1031, 1032, 1033, 2000]
ADVERSARIAL = sorted(
    {
        *("a" * length for length in LENGTHS),
        *("\0" * length for length in LENGTHS),
        *("a" * (length - 1) + "\0" for length in LENGTHS if length),
        *("\0" * (length - 1) + "a" for length in LENGTHS if length),
        *("b" * (length - 1) + "a" for length in LENGTHS if length),
        *("é" * (length // 2) for length in LENGTHS),
        "\x01\0\0\0\0\0\0\0a",  # looks like a length and a text
        "\x01\0\0\0\0\0\0\0a\0\0\0\0\0\0\0",
        hashlib.blake2b(b"a" * 1033).hexdigest(),
        "007",
        "7",
    }
)


def test_hashes_of_adversarial_ids_are_those_of_the_definition_and_differ():
    hashes = hash_rows(pa.array(ADVERSARIAL))
    assert hashes == [oracle_hash(text) for text in ADVERSARIAL]
    assert len({high for high, _ in hashes}) == len(ADVERSARIAL), "users are known by the high word alone"


@given(st.lists(st.text(max_size=60), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 5))
def test_hashes_of_any_ids_and_of_slices(texts, low, high):
    sliced = pa.array(["before", *texts, "after"])[low : len(texts) + 2 - high]
    assert hash_rows(sliced) == [oracle_hash(text) for text in sliced.to_pylist()]


def test_more_ids_than_fit_one_slice_of_work():
    texts = [f"id {number}" for number in range(150_000)]
    hashes = IdHasher(KEY)(pa.array(texts))
    for row in (0, 1, 65_535, 65_536, 131_071, 131_072, 149_999):
        assert tuple(hashes[row].tolist()) == oracle_hash(texts[row])
    assert len(np.unique(hashes[:, 0])) == len(texts)


def test_derived_keys_are_bound_to_every_part():
    parts = [
        ("a",),
        ("a", ""),
        ("", "a"),
        ("a", "b"),
        ("ab",),
        ("a", "b", ""),
        ("a", 1),
        ("a", 11),
        ("a", 1, 1),
        ("a1",),
    ]
    keys = [derive_key(KEY, *part) for part in parts]
    assert len(set(keys)) == len(parts)
    message = b"shh v1" + struct.pack("<Q", 4) + b"pass" + struct.pack("<Q", 2) + b"-3"
    assert derive_key(KEY, "pass", -3) == hmac.new(KEY, message, "sha256").digest()


@given(st.lists(st.lists(st.integers(0, ONE - 1), min_size=1, max_size=6), min_size=1, max_size=8))
@example([[(1 << 64) - 1] * 70_000, [ONE - 1] * 1000, [(1 << 32) - 1] * 9, [ONE - 1, 1], [1 << 127] * 2])
def test_sums_of_sets(groups):
    """They carry from word to word."""
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    values = words_of(*(value for group in groups for value in group))
    assert [*map(integer_of, sum_modulo_2_128(values, starts))] == [sum(group) % ONE for group in groups]


def test_short_keys_are_refused():
    with pytest.raises(ValueError, match=rf"at least 32 bytes, got 31\. {re.escape(MAKE_A_KEY)}"):
        StreamKeys(bytes(MIN_KEY_BYTES - 1), run_id="r", plan_fingerprint="p", stream="s", threshold=5)


SECRET = bytes(range(32))
RUN = ("run", "plan", "stream", 5)
FIRST, SECOND = (3 << 64) + 7, (2**63 << 64) + 11
ROW, ROW_2 = words_of(FIRST), words_of(SECOND)
USER = 2**63 + 12345


def stream_keys(secret=SECRET, part=""):
    return StreamKeys(secret, run_id="run", plan_fingerprint="plan", stream="stream", threshold=5, part=part)


def chained(purpose, *context, blocks, secret=SECRET):
    """CBC-MAC of the blocks under the key of a purpose."""
    parts = [str(part).encode() for part in (purpose, *context)]
    message = b"shh v1" + b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    data = b"".join(struct.pack("<QQ", block >> 64, block & (2**64 - 1)) for block in blocks)
    return cbc_mac(data, hmac.new(secret, message, "sha256").digest())


def text_blocks(text):
    """Its length, and its bytes filled up with zeros."""
    data = struct.pack("<Q", len(text)) + text
    data += bytes(-len(data) % 16)
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    return tuple((high << 64) + low for high, low in zip(words[::2], words[1::2], strict=True))


PAIR = (FIRST, SECOND)
CASES = {
    "user ids": (lambda keys: keys.hash_users(pa.array(["ünï"])), ("user ids",), text_blocks("ünï".encode())),
    "item ids": (lambda keys: keys.hash_items(pa.array(["x" * 30])), ("item ids",), text_blocks(b"x" * 30)),
    "holders": (lambda keys: keys.widen_users(np.array([USER], dtype=np.uint64)), ("holders",), (USER << 64,)),
    "contributions": (lambda keys: keys.contribution_order(9)(ROW), ("contributions", "stream", 9), (FIRST,)),
    "pass": (lambda keys: keys.pass_uniforms(9).of_pairs(ROW, ROW_2), ("pass", *RUN, 9), PAIR),
    "noise": (lambda keys: keys.noise_uniforms(9).of_pairs(ROW, ROW_2), ("noise", *RUN, 9), PAIR),
    "noise pair": (
        lambda keys: keys.noise_pair_uniforms(9, 4).of_pairs(ROW, ROW_2),
        ("noise pair", *RUN, 9, 4),
        PAIR,
    ),
    "zero items": (lambda keys: keys.empty_item_uniforms()(ROW), ("zero items", *RUN), (FIRST,)),
    "looks": (
        lambda keys: keys.window_uniforms()(np.array([9]), ROW, ROW_2),
        ("looks", *RUN),
        (9 << 64, *PAIR),
    ),
    "looks in blocks": (
        lambda keys: keys.block_uniforms()(np.array([9]), ROW, ROW_2),
        ("looks in blocks", *RUN),
        (9 << 64, *PAIR),
    ),
    "looks in a round": (
        lambda keys: keys.round_uniforms(2)(np.array([9]), ROW, ROW_2),
        ("looks in a round", *RUN, 2),
        (9 << 64, *PAIR),
    ),
    "look order": (
        lambda keys: keys.payment_order()(np.array([USER], dtype=np.uint64), np.array([9]), ROW),
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
@pytest.mark.parametrize("secret", [SECRET, b"\xff" * 48])
def test_each_function_is_aes_under_a_key_made_from_the_secret(purpose, secret):
    """A function whose key knows no secret could be computed by anybody, and the noise with it."""
    found, context, blocks = CASES[purpose]
    assert [tuple(row) for row in found(stream_keys(secret)).tolist()] == [
        chained(*context, blocks=blocks, secret=secret)
    ]
