"""Fingerprints by which a run knows its key and its input again. Neither says what is in them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import BinaryIO, cast

from dp_transforms.checks import on_one_line
from dp_transforms.local_files import open_regular
from dp_transforms.mechanisms.randomness import derive_key
from dp_transforms.remote_files import StoredFile, look_at, open_stored
from dp_transforms.run_state.state_header import StateError

_PIECE_BYTES = 1 << 20


def key_fingerprint(secret: bytes) -> str:
    """Hex, 256 bits: the keyed hash of a constant, by a key of its own. It reveals the secret to nobody who could not
    guess it, and is the same for the same secret alone (HMAC-SHA256 as a pseudo-random function)."""
    return derive_key(secret, "fingerprint of the noise key").hex()


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What tells that a file was exchanged or written to: device, number, size and time of the last change."""

    device: int
    number: int
    size: int
    changed_nanos: int

    @classmethod
    def of(cls, found: os.stat_result) -> _Seen:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class InputFingerprint:
    """The files of a log and how they are read, as one hex SHA-256: `text`.

    The names and the order of the files do not matter, nor where they are; their endings do, which say the format. Each
    file is read once here, and again by the run: `check_unchanged` tells afterwards that nobody wrote to it in between.

    paths: files; they are read when `text` is asked for first. reading: all options on which it depends what the rows
    mean. stored: the versions of those whose path is a URL. They are read too: what a store says of a content is not
    a hash that nobody can forge.
    """

    def __init__(
        self, paths: Iterable[str], reading: Iterable[str], stored: Mapping[str, StoredFile] | None = None
    ) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._reading = tuple(reading)
        self._stored = dict(stored or {})
        self._seen: dict[str, _Seen] = {}

    @functools.cached_property
    def text(self) -> str:
        """Raises StateError for a file that cannot be read."""
        digests = sorted(map(self._digest, self._paths))
        parts = [f"shh input 1, {len(digests)} files".encode(), *digests]
        parts += [hashlib.sha256(option.encode("utf-8", "surrogateescape")).digest() for option in self._reading]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def _digest(self, path: str) -> bytes:
        content = hashlib.sha256(pathlib.PurePath(path).suffix.lower().encode("utf-8", "surrogateescape") + b"\n")
        try:
            with self._open(path) as file:
                while piece := file.read(_PIECE_BYTES):
                    content.update(piece)
                if path not in self._stored:
                    self._seen[path] = _Seen.of(os.fstat(file.fileno()))
        except OSError as error:
            raise StateError(f"{on_one_line(path)} cannot be read: {error.strerror}. Check the log.") from None
        return content.digest()

    def _open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, open_stored(self._stored[path])) if path in self._stored else open_regular(path)

    def check_unchanged(self) -> None:
        """Raises StateError if a file is not the one that was read here: a part must have one input."""
        seen: dict[str, _Seen | StoredFile] = {**self._seen, **self._stored}
        for path, before in seen.items():
            try:
                found = look_at(path) if path in self._stored else _Seen.of(os.stat(path))
            except OSError:
                found = None
            if found != before:
                raise StateError(
                    f"{on_one_line(path)} was changed while it was replayed; nothing was published. Replay files that"
                    " nobody writes to any more."
                )
