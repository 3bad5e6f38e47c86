"""Keyed functions against single-block AES, one id at a time. Keys are fixed; nothing here is statistical."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.mechanisms.randomness import (
    MIN_KEY_BYTES,
    BlockFunction,
    IdHasher,
    StreamKeys,
    derive_key,
    sum_modulo_2_128,
)

KEY = bytes(range(32))
ONE = 1 << 128


def words(values: Sequence[int]) -> np.ndarray:
    return np.array([divmod(value, 1 << 64) for value in values], dtype=np.uint64).reshape(-1, 2)


def integers(rows: np.ndarray) -> list[int]:
    return [(int(high) << 64) | int(low) for high, low in rows]


def cbc_mac(message: bytes, key: bytes = KEY) -> tuple[int, int]:
    """The last block of AES-CBC with a zero vector, as two little-endian words."""
    encryptor = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor()
    return struct.unpack("<QQ", encryptor.update(message)[-16:])


def oracle_hash(text: str, key: bytes = KEY) -> tuple[int, int]:
    data = text.encode()
    if len(data) > 1032:
        return cbc_mac(struct.pack("<QQ", len(data), 0) + hashlib.blake2b(data).digest(), key)
    message = struct.pack("<Q", len(data)) + data
    return cbc_mac(message + bytes(-len(message) % 16), key)


def hash_rows(array: pa.StringArray, key: bytes = KEY) -> list[tuple[int, int]]:
    return [(int(high), int(low)) for high, low in IdHasher(key)(array)]


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


def test_hashes_of_adversarial_ids_are_those_of_the_definition_and_differ() -> None:
    hashes = hash_rows(pa.array(ADVERSARIAL))
    assert hashes == [oracle_hash(text) for text in ADVERSARIAL]
    assert len(set(hashes)) == len(ADVERSARIAL)
    # Also in each word alone: users are known by the high one.
    assert len({high for high, _ in hashes}) == len({low for _, low in hashes}) == len(ADVERSARIAL)


@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=20),
    st.integers(0, 5),
    st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_hashes_of_any_ids_and_of_slices(texts: list[str], low: int, high: int) -> None:
    sliced = pa.array(["before", *texts, "after"])[low : len(texts) + 2 - high]
    assert hash_rows(sliced) == [oracle_hash(text) for text in sliced.to_pylist()]


def test_a_hash_does_not_depend_on_its_neighbours() -> None:
    forward = dict(zip(ADVERSARIAL, hash_rows(pa.array(ADVERSARIAL)), strict=True))
    backward = dict(zip(ADVERSARIAL[::-1], hash_rows(pa.array(ADVERSARIAL[::-1])), strict=True))
    assert forward == backward
    assert all(hash_rows(pa.array([text])) == [forward[text]] for text in ADVERSARIAL)
    repeated = pa.array([text for text in ADVERSARIAL for _ in range(3)])
    assert hash_rows(repeated)[::3] == hash_rows(repeated)[2::3] == [forward[text] for text in ADVERSARIAL]


def test_more_ids_than_fit_one_slice_of_work() -> None:
    texts = [f"id {number}" for number in range(150_000)]
    hashes = IdHasher(KEY)(pa.array(texts))
    for row in (0, 1, 65_535, 65_536, 131_071, 131_072, 149_999):
        assert tuple(hashes[row].tolist()) == oracle_hash(texts[row])
    assert len(np.unique(hashes[:, 0])) == len(texts)


def test_no_ids_have_no_hashes() -> None:
    assert IdHasher(KEY)(pa.array([], pa.string())).shape == (0, 2)
    assert IdHasher(KEY)(pa.array(["a", "b"])[1:1]).shape == (0, 2)
    assert hash_rows(pa.array([""])) == [oracle_hash("")]


def test_derived_keys_are_bound_to_every_part() -> None:
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
        ("b", "a"),
    ]
    keys = [derive_key(KEY, *part) for part in parts]
    assert len(set(keys)) == len(parts)
    assert {len(key) for key in keys} == {32}
    assert derive_key(bytes(32), "a") != derive_key(KEY, "a")
    message = b"shh v1" + struct.pack("<Q", 4) + b"pass" + struct.pack("<Q", 2) + b"-3"
    assert derive_key(KEY, "pass", -3) == hmac.new(KEY, message, "sha256").digest()


@given(st.lists(st.tuples(*[st.integers(0, ONE - 1)] * 2), min_size=1, max_size=10))
@settings(max_examples=50, deadline=None)
def test_blocks_are_aes_and_pairs_are_chained(pairs: list[tuple[int, int]]) -> None:
    function = BlockFunction(KEY)
    first, second = words([one for one, _ in pairs]), words([two for _, two in pairs])

    def block(row: np.ndarray) -> bytes:
        return struct.pack("<QQ", int(row[0]), int(row[1]))

    assert [tuple(row) for row in function(first).tolist()] == [cbc_mac(block(row)) for row in first]
    expected = [cbc_mac(block(one) + block(two)) for one, two in zip(first, second, strict=True)]
    assert [tuple(row) for row in function.of_pairs(first, second).tolist()] == expected
    assert [tuple(row) for row in function.of_pairs(first, second).tolist()] == expected, "no state between calls"


@given(st.lists(st.lists(st.integers(0, ONE - 1), min_size=1, max_size=6), min_size=1, max_size=8))
@settings(deadline=None)
def test_sums_of_sets(groups: list[list[int]]) -> None:
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    values = words([value for group in groups for value in group])
    expected = [sum(group) % ONE for group in groups]
    assert integers(sum_modulo_2_128(values, starts)) == expected
    turned = words([value for group in groups for value in reversed(group)])
    assert integers(sum_modulo_2_128(turned, starts)) == expected


def test_sums_carry_from_word_to_word() -> None:
    for group in ([ONE - 1] * 1000, [(1 << 64) - 1] * 70_000, [(1 << 32) - 1] * 9, [ONE - 1, 1], [1 << 127] * 2):
        assert integers(sum_modulo_2_128(words(group), np.array([0]))) == [sum(group) % ONE]


@pytest.mark.parametrize("length", [0, 1, MIN_KEY_BYTES - 1])
def test_short_keys_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"at least 32 bytes, got {length}"):
        StreamKeys(bytes(length), run_id="r", plan_fingerprint="p", stream="s", threshold=5)
