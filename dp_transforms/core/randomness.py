"""Keyed functions: identities, choices and uniforms, all derived from one secret.

Within a run every draw is a deterministic function of the secret, so a bundle that is processed twice publishes one
answer and not two (docs/guarantee.md, "Retry and replay"). The guarantee is then computational: AES-256 and
HMAC-SHA256 are taken to be pseudo-random. There is no seedable generator here.

A 128-bit value is a row ``(high, low)`` of an array ``uint64[n, 2]``; its integer is ``high * 2^64 + low``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dp_transforms.checks import MAKE_A_KEY

Words: TypeAlias = npt.NDArray[np.uint64]
Whole: TypeAlias = npt.NDArray[np.int64]
ItemUniforms: TypeAlias = Callable[[Whole, Words, Words], Words]
"""One uniform for each sum of weights, uint64[n, 2]: of its window, int64[n]; the hash of its item, uint64[n, 2]; and
the digest of its holders with their weights, uint64[n, 2], the sum of `StreamKeys.widen_holders`, 0 for none."""
ContributionOrder: TypeAlias = Callable[[Words, Whole, Words], Words]
"""uint64[n, 2] of users, uint64[n]; windows, int64[n]; and hashes of items, uint64[n, 2]: the first ones count."""

MIN_KEY_BYTES = 32
_LONG_ID_BYTES = 1032  # longer ids are hashed down first: 65 blocks bound the loop below
_ROWS_AT_ONCE = 65_536  # keeps the padded copy of a slice of ids in the cache
_LOW_HALF = np.uint64(0xFFFF_FFFF)
_HALF_BITS = np.uint64(32)


def derive_key(secret: bytes, purpose: str, *context: str | int) -> bytes:
    """A 256-bit key for one purpose and context: HMAC-SHA256 over parts that each carry their length."""
    message = b"".join(
        len(part).to_bytes(8, "little") + part for part in (str(value).encode() for value in (purpose, *context))
    )
    return hmac.digest(secret, b"shh v1" + message, "sha256")


class BlockFunction:
    """A keyed pseudo-random function on 128-bit blocks: AES-256."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()

    def __call__(self, blocks: Words) -> Words:
        """blocks: uint64[n, 2]. Returns uint64[n, 2]."""
        data = self._encryptor.update(blocks.astype("<u8", copy=False).tobytes())
        return np.frombuffer(data, dtype="<u8").reshape(-1, 2)

    def of_pairs(self, first: Words, second: Words) -> Words:
        """AES-CBC-MAC over two fixed blocks each. first, second: uint64[n, 2]. Returns uint64[n, 2]."""
        return self(self(first) ^ second)

    def of_triples(self, first: Words, second: Words, third: Words) -> Words:
        """AES-CBC-MAC over three fixed blocks each: not with a key that `of_pairs` uses. uint64[n, 2] each."""
        return self(self.of_pairs(first, second) ^ third)


class IdHasher:
    """Keyed hash of ids: AES-CBC-MAC over the length and the UTF-8 bytes, a prefix-free encoding.

    Ids of over 1,032 bytes are first reduced by BLAKE2b; their length keeps them apart from all others.
    """

    def __init__(self, key: bytes) -> None:
        self._function = BlockFunction(key)

    def __call__(self, ids: pa.StringArray) -> Words:
        """ids: pyarrow string array of length n without nulls. Returns uint64[n, 2]."""
        if ids.type != pa.string() or ids.null_count:
            raise ValueError(f"ids must be a string array without nulls, got {ids.type} with {ids.null_count} nulls.")
        offsets = np.frombuffer(ids.buffers()[1], dtype=np.int32)[ids.offset : ids.offset + len(ids) + 1]
        content = ids.buffers()[2]
        data = np.frombuffer(content, dtype=np.uint8) if content is not None else np.zeros(0, np.uint8)
        starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
        hashes = np.empty((len(ids), 2), dtype=np.uint64)
        blocks = np.where(lengths > _LONG_ID_BYTES, 0, (lengths + 8 + 15) // 16)
        padded = np.concatenate([data, np.zeros(int(blocks.max()) * 16, np.uint8)]) if blocks.any() else data
        for count in np.flatnonzero(np.bincount(blocks)):
            rows = np.flatnonzero(blocks == count)
            if count == 0:
                hashes[rows] = self._long_ids(data, starts[rows], lengths[rows])
                continue
            width = int(count) * 16 - 8
            at_every_start = np.lib.stride_tricks.sliding_window_view(padded, width)
            for low in range(0, len(rows), _ROWS_AT_ONCE):
                part = rows[low : low + _ROWS_AT_ONCE]
                message = np.zeros((len(part), int(count) * 2), dtype="<u8")
                message[:, 0] = lengths[part]
                text = message.view(np.uint8)[:, 8:]
                first, length = int(starts[part[0]]), int(lengths[part[0]])
                if part[-1] - part[0] == len(part) - 1 and (lengths[part] == length).all():  # neighbours of one length
                    text[:, :length] = data[first : first + len(part) * length].reshape(len(part), length)
                else:
                    text[:] = at_every_start[starts[part]]
                    text *= np.arange(width) < lengths[part, None]
                hashes[part] = self._chain(message)
        return hashes

    def _chain(self, message: Words) -> Words:
        """CBC-MAC of messages of one length. message: uint64[n, 2 * blocks]."""
        chained = self._function(message[:, :2])
        for column in range(2, message.shape[1], 2):
            chained = self._function(chained ^ message[:, column : column + 2])
        return chained

    def _long_ids(self, data: npt.NDArray[np.uint8], starts: Whole, lengths: Whole) -> Words:
        message = np.zeros((len(starts), 10), dtype="<u8")
        message[:, 0] = lengths
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            digest = hashlib.blake2b(data[start : start + length].tobytes()).digest()
            message[row, 2:] = np.frombuffer(digest, dtype="<u8")
        return self._chain(message)


def _blocks(first: npt.NDArray[np.integer], second: npt.NDArray[np.integer] | None = None) -> Words:
    """One block for each row. first, second: integers >= 0, [n]; no second: 0. Returns uint64[n, 2]."""
    blocks = np.zeros((len(first), 2), dtype=np.uint64)
    blocks[:, 0] = first
    if second is not None:
        blocks[:, 1] = second
    return blocks


def sum_modulo_2_128(values: Words, starts: Whole) -> Words:
    """Sums of consecutive groups of 128-bit values, modulo 2^128: digests of sets, whatever their order.

    values: uint64[n, 2]. starts: int64[k], first row of each group, strictly increasing. Returns uint64[k, 2].
    """
    high, low = values[:, 0], values[:, 1]
    quarter = np.add.reduceat(low & _LOW_HALF, starts)
    upper = np.add.reduceat(low >> _HALF_BITS, starts) + (quarter >> _HALF_BITS)
    sums = np.empty((len(starts), 2), dtype=np.uint64)
    sums[:, 0] = np.add.reduceat(high, starts) + (upper >> _HALF_BITS)
    sums[:, 1] = (upper << _HALF_BITS) | (quarter & _LOW_HALF)
    return sums


class IdKeys:
    """The keyed hashes of ids, which depend on the secret alone.

    secret: at least 32 bytes. hash_users, hash_items: each with a key of its own, as `IdHasher`. The first word alone
        is a user's hash; both are an item's.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_KEY_BYTES:
            raise ValueError(f"the noise key must have at least {MIN_KEY_BYTES} bytes, got {len(secret)}. {MAKE_A_KEY}")
        self.hash_users = IdHasher(derive_key(secret, "user ids"))
        self.hash_items = IdHasher(derive_key(secret, "item ids"))


class StreamKeys(IdKeys):
    """All keyed functions of one run over one stream.

    secret: at least 32 bytes. run_id: fresh for every run that is charged. plan_fingerprint, stream, threshold: the
        noise depends on them too, besides the window, the item and its holders. part: of a part of a run, the
        nonce that was drawn when it began (`RunPart.draws_as`); "" of a whole run.

    Noise depends on the run id, and on the part. Identities and choices do not: budgets that carry over need stable
    ids, and all parts and rounds take the contributions of a user in one order.
    """

    def __init__(
        self, secret: bytes, *, run_id: str, plan_fingerprint: str, stream: str, threshold: int, part: str = ""
    ) -> None:
        super().__init__(secret)
        self._secret = secret
        self.stream = stream
        # Keys are of lists of parts, each with its length: one with a part more is never one of those without.
        of_part = (part,) if part else ()
        self._noise_context: tuple[str | int, ...] = (run_id, plan_fingerprint, stream, threshold, *of_part)
        self._holders = BlockFunction(derive_key(secret, "holders"))
        self._weighted_holders = BlockFunction(derive_key(secret, "weighted holders"))

    def _of_stream(self, purpose: str, *context: int) -> BlockFunction:
        return BlockFunction(derive_key(self._secret, purpose, self.stream, *context))

    def _of_noise(self, purpose: str, *context: int) -> BlockFunction:
        return BlockFunction(derive_key(self._secret, purpose, *self._noise_context, *context))

    def _item_uniforms(self, purpose: str, *context: int) -> ItemUniforms:
        function = self._of_noise(purpose, *context)
        return lambda windows, hashes, digests: function.of_triples(_blocks(windows), hashes, digests)

    # Which contributions count

    def contribution_order(self, window: int) -> BlockFunction:
        """Orders the items of a user with more than its share of them in one window."""
        return self._of_stream("contributions", window)

    def payment_order(self) -> ContributionOrder:
        """Orders the contributions of a user whose budget cannot pay for all of them."""
        function = self._of_stream("look order")
        return lambda users, windows, hashes: function.of_pairs(_blocks(users, windows), hashes)

    # Noise of hits

    def pass_uniforms(self, window: int) -> BlockFunction:
        """First stage of a draw: of pairs (item, digest of all holders)."""
        return self._of_noise("pass", window)

    def noise_uniforms(self, window: int) -> BlockFunction:
        """Second stage of a draw: of pairs (item, digest of the active holders)."""
        return self._of_noise("noise", window)

    def noise_pair_uniforms(self, window: int, number: int) -> BlockFunction:
        """Draws of two noises for one query, in one stage: its uniform `number`, of pairs as in `noise_uniforms`."""
        return self._of_noise("noise pair", window, number)

    def empty_item_uniforms(self) -> BlockFunction:
        """Which public items are published although nobody holds them: of pairs (window, number)."""
        return self._of_noise("zero items")

    def widen_users(self, users: Words) -> Words:
        """Keyed 64-bit hashes of users, widened to the 128 bits that digests add up. uint64[n] -> uint64[n, 2]."""
        return self._holders(_blocks(users))

    # Noise of contributions

    def window_uniforms(self) -> ItemUniforms:
        """Draws of a plan without rounds."""
        return self._item_uniforms("looks")

    def block_uniforms(self) -> ItemUniforms:
        """Draws of the first round: of blocks of windows."""
        return self._item_uniforms("looks in blocks")

    def round_uniforms(self, number: int) -> ItemUniforms:
        """Draws of a later round. Holders and weights may be those of another round, and each round needs noise of its
        own."""
        return self._item_uniforms("looks in a round", number)

    def widen_holders(self, users: Words, weights: Whole) -> Words:
        """Users together with their weights as the 128 bits that digests add up. uint64[n], int64[n] -> uint64[n, 2].

        The noise is a function of the digest. With the users alone, an item would have the same noise in two logs in
        which one holder has another weight, and the theorem needs a fresh one.
        """
        return self._weighted_holders(_blocks(users, weights))
