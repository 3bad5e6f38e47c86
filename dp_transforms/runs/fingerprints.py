"""The noise key of a run, in a private file, and what is derived from it beside noise: the fingerprints by which a run
knows its key and its input again, and the key that seals its states. None of them tells what the key or the input is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import BinaryIO, cast

from dp_transforms.checks import MAKE_A_KEY, on_one_line
from dp_transforms.core.randomness import MIN_KEY_BYTES, derive_key
from dp_transforms.runs.records import StateError
from dp_transforms.stores.local_files import mode_for_others, open_regular
from dp_transforms.stores.remote_files import StoredFile, StoredReader

_PIECE_BYTES = 1 << 20
_MAX_KEY_BYTES = 1 << 16
_LEAST_DIFFERENT_BYTES = 8  # of 32 random bytes, one key in 10^33 has fewer; of 32 random hex digits, one in 10^7


def read_key_file(path: str) -> bytes:
    """Raises ValueError if the file is missing, open to others, too short or too long, or clearly not random. A pipe is
    refused: it can be read only once, and every worker needs the key."""
    try:
        with open_regular(path) as file:
            if mode := mode_for_others(file):
                raise ValueError(
                    f"the noise key file {path} can be used by others (mode {mode}). Close it with: chmod 600 {path}"
                )
            secret = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the noise key file {path} cannot be read: {error.strerror}. {MAKE_A_KEY}") from None
    if not MIN_KEY_BYTES <= len(secret) <= _MAX_KEY_BYTES or len(set(secret)) < _LEAST_DIFFERENT_BYTES:
        raise ValueError(
            f"the noise key file {path} must hold {MIN_KEY_BYTES} to {_MAX_KEY_BYTES} random bytes. {MAKE_A_KEY}"
        )
    return secret


def key_fingerprint(secret: bytes) -> str:
    """Hex, 256 bits: the keyed hash of a constant, by a key of its own. It reveals the secret to nobody who could not
    guess it, and is the same for the same secret alone (HMAC-SHA256 as a pseudo-random function)."""
    return derive_key(secret, "fingerprint of the noise key").hex()


def sealing_key(secret: bytes) -> bytes:
    """The key by which the states of a run are sealed (`state_file`)."""
    return derive_key(secret, "seal of a state")


def input_key(secret: bytes) -> bytes:
    """The key of the input fingerprints of a run: who does not have the noise key cannot try guesses of the log."""
    return derive_key(secret, "fingerprint of an input")


def input_fingerprint(
    files: Iterable[tuple[str, str]],
    reading: Iterable[str],
    key: bytes | None = None,
    stored: Mapping[str, StoredFile] | None = None,
) -> str:
    """The files of a log and how they are read, as 64 hex digits. Raises StateError for a file that cannot be read.

    The names and the order of the files do not matter, nor where they are; how each is read does, which its ending
    says. Each file is read once here, and again by the run, which sees to it that nobody writes to it in between
    (`logs.log_chunk.FileState`).

    files: of each its path, and in words how it is read (`logs.ending_of_log`). reading: all options on which it
    depends what the rows mean. key: `input_key`; None where the noise key is drawn for the run and forgotten: then who
    guesses the whole log can tell that the guess is right. stored: the versions of those whose path is a URL. They are
    read too: what a store says of a content is not a hash that nobody can forge.
    """
    digests = sorted(_digest(path, read_as, (stored or {}).get(path)) for path, read_as in dict.fromkeys(files))
    parts = [f"shh input 2, {len(digests)} files".encode(), *digests]
    parts += [hashlib.sha256(option.encode("utf-8", "surrogateescape")).digest() for option in reading]
    content = b"".join(parts)
    return hashlib.sha256(content).hexdigest() if key is None else hmac.digest(key, content, "sha256").hex()


def _digest(path: str, read_as: str, stored: StoredFile | None) -> bytes:
    content = hashlib.sha256(read_as.encode() + b"\n")
    try:
        with cast(BinaryIO, StoredReader(stored)) if stored else open_regular(path) as file:
            while piece := file.read(_PIECE_BYTES):
                content.update(piece)
    except OSError as error:
        raise StateError(f"{on_one_line(path)} cannot be read: {error.strerror}. Check the log.") from None
    return content.digest()
