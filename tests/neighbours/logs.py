"""Two logs that differ in one user: D, and D without all rows of x'. How rows are placed, and what the others hold.

A row is what one producer wrote: the bytes of a line, a record, or the value of a message. Whose it is, its producer
decides; a row whose user cannot be read is one of x' as well.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tests.helpers.small_runs import MICROS, START, small_plan
from tests.reference.log import Event

ADDED_USER = "x'"
WINDOWS = 6
PLAN = small_plan(WINDOWS, max_items_per_user=50)  # of a minute each, from START on; nobody but x' holds so many items
USERS = tuple(f"u{number}" for number in range(40))
ODD_USERS = tuple(f"o{number}" for number in range(1, 15))  # others, whose rows are odd
PLACES = ("first", "last", "around", "spread")


class Row(NamedTuple):
    body: Any
    is_added: bool = False


Log = list[Row]


def without_added(log: Iterable[Row]) -> Log:
    return [row for row in log if not row.is_added]


def crowd(seed: int, events: int = 120, users: int = len(USERS)) -> list[Event]:
    """What the others do: a few items each, all over the declared range, in no order; at most 3 a window each."""
    source = random.Random(seed)
    log = []
    for _ in range(events):
        user = source.randrange(users)
        second = source.randrange(WINDOWS * 60)
        item = "A" if source.random() < 0.6 else f"item-{(user + source.randrange(2)) % 9}"
        log.append((USERS[user], item, (START + second) * MICROS + source.randrange(MICROS)))
    return log


def expected_pairs(events: Iterable[Event]) -> frozenset[tuple[int, str, str]]:
    """(window, user, item) of those events."""
    return frozenset(((time // MICROS - START) // 60, user, item) for user, item, time in events)


def iso(micros: int) -> str:
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=micros)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


NOW = iso((START + 90) * MICROS)  # a time in the second window, for rows of which only other fields matter


def place(others: Sequence[Any], added: Sequence[Any], where: str, seed: int = 0) -> Log:
    """The rows of both in one order. around: the first added one first, the last added one last. spread: anywhere."""
    own, foreign = [Row(body, True) for body in added], [Row(body) for body in others]
    if where == "first":
        return own + foreign
    if where == "last":
        return foreign + own
    if where == "around":
        half = (len(own) + 1) // 2
        return own[:half] + foreign + own[half:]
    source = random.Random(seed)
    at = sorted(source.randrange(len(foreign) + 1) for _ in own)
    log: Log = []
    for row, begin, end in zip([None, *own], [0, *at], [*at, len(foreign)], strict=True):
        log += ([row] if row else []) + foreign[begin:end]
    return log


# ---------------------------------------------------------------------------------------------------------------------
# Text formats: rows are lines without their ends
# ---------------------------------------------------------------------------------------------------------------------


def as_csv(event: Event) -> bytes:
    user, item, micros = event
    return f"{user},{item},{iso(micros)}".encode()


def as_json(event: Event) -> bytes:
    user, item, micros = event
    return json.dumps({"user": user, "item": item, "timestamp": iso(micros)}).encode()


# Lines of others that are odd and their own: whether each one counts, its own bytes decide, whatever x' wrote.
_ODD_TIMES = (
    *("2023-11-14 22:14:05", "2023-11-14T22:14:05+00:00", "20231114T221405Z", "2023-11-14T22:14:05.1234567890Z"),
    *("2023-11-14T22:14", "2023-11-14T22", "2023-11-14", "2023-11-15T03:44:05+0530", "2023-11-14t22:14:05z"),
    *("2023-11-14T22:14:60Z", "2023-11-14T24:14:00Z", "2023-02-29T00:00:00Z", "1700000045", "1.7e9", "", " ", "soon"),
)


def odd_csv_lines() -> list[bytes]:
    t = NOW.encode()
    return [
        *(f"o1,time {number},{time}".encode() for number, time in enumerate(_ODD_TIMES)),
        b'"o2","quoted, ""twice""",' + t,
        b"o3,\xc3\xa4\xe2\x80\xa8\xf0\x9f\x98\x80," + t,
        b"o4,\xff\xfe," + t,
        b"o5,too few",
        b"o6,too many," + t + b",more",
        b"o7,007," + t,
        b"o7,7," + t,
        b"o7,1e5," + t,
        b"o8, blanks ," + t,
        b"o8,null," + t,
        b"o9,a tab\tin it," + t,
        b"o10,," + t,
        b"o11,a back\\slash," + t,
        b"o12," + b"l" * 16_384 + b"," + t,
        b"o12," + b"m" * 16_385 + b"," + t,
        b"o13,'single'," + t,
        b"o14,NaN," + t,
    ]


def odd_json_lines() -> list[bytes]:
    t = f'"timestamp": "{NOW}"'.encode()
    return [
        *(
            json.dumps({"user": "o1", "item": f"time {number}", "timestamp": time}).encode()
            for number, time in enumerate([*_ODD_TIMES, None, True, [1], {"a": 1}])
        ),
        *(b'{"user": "o2", "item": %s, ' % item + t + b"}" for item in _ODD_JSON_ITEMS),
        b'{"user": "o3", "item": "first", "item": "second", ' + t + b"}",
        b'{"user": "o4", "item": "other", "more": {"more": [[1e999, "x"], {}]}, ' + t + b"}",
        b'{"user": "o5", "item": "no time"}',
        b'{"user": "o6", ' + t + b"}",
        b'{"item":"o7 is last","timestamp":"' + NOW.encode() + b'","user":"o7"}',
        b' \t{"user": "o8", "item": "blanks", ' + t + b"} \r",
        b'{"user": "o9", "item": "NaN beside", "more": NaN, ' + t + b"}",
        b'{"user": "o10", "item": "-Inf in text: -Infinity", ' + t + b"}",
        b'{"user": "o11", "item": "deep", "more": ' + b"[" * 150 + b"]" * 150 + b", " + t + b"}",
        b'{"user": "o12", "item": "cut off"',
    ]


_ODD_JSON_ITEMS = (
    *(b"7", b"-0", b"0", b"07", b"7.0", b"1e2", b"12345678901234567890", b"9223372036854775807", b"9007199254740993"),
    *(b'"7"', b'"\\u0041"', b'"\\u0000"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\xff"', b'"\xe2\x80\xa8"', b'"\x00"'),
    *(b"null", b"true", b"{}", b'["A"]', b'""', b'" "', b'"' + b"l" * 16_385 + b'"', b"NaN", b"'A'", b'"\\x"'),
)
