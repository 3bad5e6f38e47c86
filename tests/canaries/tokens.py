"""Random tokens, and how one could be spelled where somebody wrote it down."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import secrets
import string
import subprocess
import sys
from collections.abc import Iterator, Sequence

_ALPHABET = string.ascii_letters + string.digits
_LENGTH = 24
_PIECE = 12  # so many characters of a token in a row are found; 62^12 of them, so that none is there by chance
_HASHES = ("md5", "sha1", "sha256", "sha512", "blake2b")
HASH_SEED = "0"  # PYTHONHASHSEED of what is searched: without it Python's own hashes are random, and tell nothing
USERS = 300


class Canaries:
    """users, labels: a random token each; label n is held by user n alone. numbers: whole numbers that are ids too.

    Every fourth token stands between characters that formats write in other ways; the token itself is in the middle.
    """

    def __init__(self, users: int = USERS) -> None:
        self.users = [_decorated(number, _token()) for number in range(users)]
        self.labels = [_decorated(number, _token()) for number in range(users)]
        self.numbers = [10**17 + secrets.randbelow(9 * 10**18) for _ in range(users)]

    @functools.cached_property
    def user_spellings(self) -> frozenset[bytes]:
        return frozenset(_spellings_of_all(self.users)) | frozenset(
            spelling for number in self.numbers for spelling in number_spellings(number)
        )

    @functools.cached_property
    def label_spellings(self) -> frozenset[bytes]:
        return frozenset(_spellings_of_all(self.labels))

    def kinds(self) -> dict[str, frozenset[bytes]]:
        """What is searched for, by what it is."""
        return {"user": self.user_spellings, "label": self.label_spellings}


def _token() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def _decorated(number: int, token: str) -> str:
    return f'é"{token}/<' if number % 4 == 0 else token


def _spellings_of_all(texts: list[str]) -> Iterator[bytes]:
    for text in texts:
        yield from text_spellings(text)
    yield from _python_hashes(texts)


def text_spellings(text: str) -> Iterator[bytes]:
    """Pieces of the token as such and encoded, and hashes of the whole text that need no key."""
    token = "".join(character for character in text if character in _ALPHABET)
    for begin in range(len(token) - _PIECE + 1):
        # Pieces at all places: one of them begins where three bytes of base64 do, wherever the token stands.
        yield from _encodings(token[begin : begin + _PIECE].encode())
    for piece in (token[:_PIECE], token[-_PIECE:]):
        yield "".join(f"%{ord(character):02x}" for character in piece).encode()
        yield "".join(f"%{ord(character):02X}" for character in piece).encode()
        yield "".join(f"\\u{ord(character):04x}" for character in piece).encode()
        yield "".join(f"\\x{ord(character):02x}" for character in piece).encode()
        yield "".join(f"&#{ord(character)};" for character in piece).encode()
        yield piece[::-1].encode()
        yield repr(list(piece.encode()))[1:-1].encode()
    for name in _HASHES:
        yield from _digest_spellings(hashlib.new(name, text.encode()).digest())


def number_spellings(number: int) -> Iterator[bytes]:
    """Decimal, hexadecimal, as the integers of Arrow, Java, Avro and protocol buffers; and hashes of the decimal."""
    text = str(number)
    yield text.encode()
    yield f"{number:,}".encode()
    yield f"{number:x}".encode()
    yield f"{number:X}".encode()
    yield number.to_bytes(8, "little", signed=True)
    yield number.to_bytes(8, "big", signed=True)
    yield _varint(number)
    yield _varint(number << 1)
    for name in _HASHES:
        yield from _digest_spellings(hashlib.new(name, text.encode()).digest())


def _encodings(data: bytes) -> Iterator[bytes]:
    yield data
    yield data.decode().encode("utf-16-le")[:-1]  # also in big-endian, a byte further
    yield data.hex().encode()
    yield data.hex().upper().encode()
    yield base64.b64encode(data)
    yield base64.urlsafe_b64encode(data)


def _digest_spellings(digest: bytes) -> Iterator[bytes]:
    """The first bytes of a digest, which is what truncated ones keep."""
    head = digest[:12]
    yield head
    yield head.hex().encode()
    yield head.hex().upper().encode()
    yield base64.b64encode(head)
    yield base64.urlsafe_b64encode(head)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _python_hashes(texts: Sequence[str]) -> Iterator[bytes]:
    """`hash` of each text: here, and in a process with PYTHONHASHSEED=0, as all others that are searched."""
    process = subprocess.run(
        [sys.executable, "-c", "import sys\nfor line in sys.stdin: print(hash(line.rstrip('\\n')))"],
        input="\n".join(texts),
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED, "PYTHONUTF8": "1"},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    for number in (*map(int, process.stdout.split()), *map(hash, texts)):
        yield str(abs(number)).encode()
        yield number.to_bytes(8, "little", signed=True)
        yield f"{number & (2**64 - 1):016x}".encode()
