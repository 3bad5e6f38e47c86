"""Checks of arguments, and how errors show a wrong value: one wording for all.

A bool, None, a text or NaN is never taken for a number.

`without_secrets` is the one place that knows what in a URL is a secret. All that a command says on stderr passes it
(`dp_transforms.cli.operator_log`).
"""

from __future__ import annotations

import difflib
import math
import numbers
import re
import zoneinfo
from collections.abc import Collection

from dp_transforms.errors import InputError

MAKE_A_KEY = "Make one with: (umask 077; head -c 32 /dev/urandom > noise.key)"
_MOST_SHOWN = 200
LARGEST_WHOLE = 2**62  # far beyond any use, and still a 64-bit integer
_HIDDEN = "***"
_LONGEST_LINE = 10_000  # of a message: the rest is cut, so that a hostile word cannot make the search take minutes
# A password goes to the last @ of its word; one with blanks to the last @ of the line, and is told from a port. A path
# that was made of a URL has one slash; a URL may have no scheme.
_USER_INFO = re.compile(
    r"(?:(?<![a-z0-9+.-])(?P<scheme>[a-z0-9+.-]+)(?P<slashes>:/+)|(?<![:/])//)(?!\[)(?P<user>[^\s/:@?]{0,256})"
    r"(?P<password>:(?:\S*|(?!\d+(?:\W|$)).*))?@",
    re.IGNORECASE,
)
# What signed URLs and connection strings carry, also those of databases: host=h password='a b'.
_PARAMETER = re.compile(r"(?<![\w.-])([\w.-]{1,100})=(?:\\?'(?:[^'\\]|\\.)+'|\\?\"(?:[^\"\\]|\\.)+\"|[^\s&;'\"]+)")
_SECRET_NAME = re.compile(
    r"password|passwd|secret|signature|credential|token|(access|account|api|shared)[_-]?key|^sig$", re.IGNORECASE
)


def how_to_install(extra: str) -> str:
    """What an error says of libraries that are missing. This package is in no index: that name there is not ours."""
    return f"In the clone of shh: pip install '.[{extra}]', with the same after pipx install or uv tool install."


def shown(value: object) -> str:
    """A wrong value as an error shows it: on one line, harmless on a terminal, without secrets, and not too long."""
    return on_one_line(without_secrets(ascii(value)), most=_MOST_SHOWN)  # what is cut is not known for one any more


def exact(value: float) -> str:
    """A budget as text, as short as it can be without a digit lost: six digits would say less than is spent."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def on_one_line(text: str, most: int | None = None) -> str:
    """A name or path as an error shows it: without anything that breaks a line or a terminal.

    most: how many characters to show, and then "..."; None: all.
    """
    printable = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return printable if most is None or len(printable) <= most else f"{printable[:most]}..."


def is_utf8(name: str) -> bool:
    """Of a name that is not, Python has made surrogates."""
    return name.encode("utf-8", "replace") == name.encode("utf-8", "surrogateescape")


def nearest(name: str, known: Collection[str]) -> str:
    """The end of a sentence on a name that is not known, perhaps a slip."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f". Do you mean {close[0]}?" if close else f". There are: {', '.join(sorted(known))}."


def time_zone(name: str) -> zoneinfo.ZoneInfo:
    """A zone of the IANA time zone database, such as Europe/Berlin. Raises InputError for a name that is none here."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        remedy = "Use a name such as Europe/Berlin, or UTC; a machine without time zones needs its package tzdata."
        raise InputError(
            "time_zone", f"must be a time zone that this machine knows, got {shown(name)}.", remedy
        ) from None


def without_secrets(text: str) -> str:
    """The same with ``***`` in place of each password, token and signature of a URL in it. Very long lines are cut."""
    return "\n".join(map(_line_without_secrets, text.split("\n")))


def _line_without_secrets(line: str) -> str:
    if len(line) > _LONGEST_LINE:
        line = f"{line[:_LONGEST_LINE]}..."
    if "@" in line:
        line = _USER_INFO.sub(_without_password, line)
    return _PARAMETER.sub(_without_value, line)


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}={_HIDDEN}" if _SECRET_NAME.search(found[1]) else found[0]


def _without_password(found: re.Match[str]) -> str:
    """A user without a password is hidden too: it may be a token."""
    user = _HIDDEN if found["password"] is None else f"{found['user']}:{_HIDDEN}"
    return f"{found['scheme'] or ''}{found['slashes'] or '//'}{user}@"


def is_number(value: object) -> bool:
    """A real number and not a bool; NaN and the infinities are numbers here."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """An integer and not a bool, of Python or of numpy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_whole(name: str, value: object, at_least: int, at_most: int = LARGEST_WHOLE) -> int:
    """The value as an int. Raises ValueError unless it is a whole number in ``at_least .. at_most``."""
    if not is_whole(value) or not at_least <= value <= at_most:  # type: ignore[operator]
        is_open = at_most == LARGEST_WHOLE and not (is_whole(value) and value > at_most)  # type: ignore[operator]
        said = f">= {at_least}" if is_open else f"in {at_least} .. {at_most}"
        raise InputError(name, f"must be a whole number {said}, got {shown(value)}.")
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_positive(name: str, value: object) -> float:
    """The value as a float. Raises ValueError unless it is a finite number > 0."""
    number = as_float(value)
    if not 0 < number < math.inf:
        raise InputError(name, f"must be finite and > 0, got {shown(value)}.")
    return number


def check_fraction(name: str, value: object) -> float:
    """The value as a float. Raises ValueError unless it lies strictly between 0 and 1."""
    number = as_float(value)
    if not 0 < number < 1:
        raise InputError(name, f"must lie strictly between 0 and 1, got {shown(value)}.")
    return number


def check_range(name: str, value: object, at_least: float, at_most: float) -> float:
    """The value as a float. Raises ValueError unless it is a number in ``[at_least, at_most]``."""
    number = as_float(value)
    if not at_least <= number <= at_most:
        raise InputError(name, f"must lie in [{at_least:g}, {at_most:g}], got {shown(value)}.")
    return number


def check_names(**names: object) -> None:
    """Checks names that reports carry: of streams and of runs. None means "not given" and is left to the caller.

    Raises ValueError unless each name is printable text and not empty.
    """
    for name, text in names.items():
        if text is not None and not (isinstance(text, str) and text and text.isprintable()):
            raise InputError(name, f"must be printable text and not empty, got {shown(text)}.")


def as_float(value: object) -> float:
    """NaN for a value that is not a number, infinity for a number that is too large."""
    if not is_number(value):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
