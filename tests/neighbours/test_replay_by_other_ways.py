"""Readers have fast ways for what is plain: a row of x' that is not sends the others' rows through a slow one.

Here the others write rows of one kind alone, so that without x' the fast way reads them; both must read the same.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from dp_transforms.logs import EventFields
from tests.helpers.small_runs import MICROS, START
from tests.neighbours.logs import ADDED_USER, NOW, PLACES, USERS, crowd, iso, place
from tests.neighbours.replayed import Neighbours
from tests.neighbours.rounds import rounds
from tests.neighbours.text_files import FORMATS, write

TWICE = (*USERS, *USERS)  # so many lines are read in columns, unless one of them is odd
# Items as JSON spells them; texts among them are cells of CSV as well.
ITEMS = (
    *("7", "-0", "0", "-7", "9007199254740993", "9223372036854775807", "-9223372036854775808", "9223372036854775808"),
    *("7.0", "1e2", "1E400", "null", "true", "[]", '{"a": 1}', '""', '" "', '"7"', '"-0"', '"\\u0041"', '"\\u0000"'),
    *('"\\ud83d\\ude00"', '"\\ud800"', '"a\\/b"', '"ä"', '"\u2028"', '"\\n"', '"\ufeff"', f'"{"l" * 16_385}"'),
)
# Times of the second window, and such as are none: whole numbers and floats in seconds, and texts.
TEXT_TIMES = (
    *("2023-11-14T22:14:05Z", "2023-11-14T22:14:05.5Z", "2023-11-14T22:14:05.123456Z", "2023-11-14T22:14:05.1234567Z"),
    *("2023-11-14 22:14:05", "2023-11-14 22:14:05Z", "2023-11-14T22:14:05", "2023-11-14T22:14:05+00:00", "2023-11-14"),
    *("2023-11-14T22:14:05-0000", "2023-11-14T22:14:05+01", "2023-11-14T22:14Z", "2023-11-14T22:14", "2023-11-14T22"),
    *(
        "20231114T221405Z",
        "2023-11-14t22:14:05z",
        "2023-11-14T22:14:60Z",
        "2023-11-14T24:00:00Z",
        "2023-11-14T22:14:5Z",
    ),
    *(" 2023-11-14T22:14:05Z", "2023-11-14T22:14:05Z ", "2023-11-14T22:14:05,5Z", "2023-02-29T00:00:00Z", "x", ""),
    *("2023-11-14T22:14:05 Z", "02023-11-14T22:14:05Z", "+2023-11-14T22:14:05Z", "2023-11-14T22:14:05.Z", "2024-02-29"),
    *("2023-11-14T22:13:59.9999999Z", "2023-11-14T22:13:59.999999999999Z", "2023-11-14T22:14:00.0000001+00:00"),
)
NUMBER_TIMES = (
    *("1700000045", "1700000045.75", "1.700000045e9", "17000000450e-1", "1700000045.0000001", "-0", "0", "1e400"),
    *("9" * 17, "9" * 30, "9007199254740993", "253402300799.9999999", "-62135596800", "1700000045.999999999"),
    *("1700000039.9999999", "1700000039.99999999999999", "1700000040.0000001", "17000000399999999e-7"),
)
ADDED_ITEMS = ("null", "7", '"7"', "1.5", '"\\ud800"', "[]")
_MINUTE = iso((START + 90) * MICROS)


def his_lines(time: str) -> list[bytes]:
    lines = [f'{{"user": "{ADDED_USER}", "item": {item}, "timestamp": {time}}}'.encode() for item in ADDED_ITEMS]
    for other in ('"soon"', "null", "1e999", "12", '"12"', '"2023-11-14T22:14:05.12345678"', "9" * 40, "true"):
        lines.append(f'{{"user": "{ADDED_USER}", "item": "A", "timestamp": {other}}}'.encode())
    return [*lines, b"{", b'{"user": "x\'", "a": NaN}', b"\xff", b" " + lines[0], b'{"user": 1, "user": 2}']


def his_rows(time: str) -> list[bytes]:
    rows = [
        f"{ADDED_USER},A,{other}".encode() for other in ("soon", "", "1e999", "12", "9" * 40, "2023-11-14T22:14:05.1")
    ]
    return [*rows, b"x'", b"x',\xff," + time.encode(), b"\xff,,,", b"x',\"", b"x'," + b"l" * 20_000, b",,"]


def same_whatever_he_writes(
    pair: Neighbours, name: str, others: list[bytes], added: list[bytes], unit: str | None
) -> None:
    fields, form = EventFields(time_unit=unit), FORMATS[name]
    for source in rounds(name, others[0]):
        for body in source.sample(added, 2):
            log = place(others, [body], source.choice(PLACES), source.getrandbits(32))
            pair.write(lambda folder, rows: write(folder, form, rows), log).same(fields)


@pytest.mark.parametrize("item", ITEMS)
def test_items_of_one_kind(tmp_path: pathlib.Path, item: str) -> None:
    pair = Neighbours(tmp_path)
    time = f'"{_MINUTE}"'
    lines = [f'{{"user": "{user}", "item": {item}, "timestamp": {time}}}'.encode() for user in TWICE]
    same_whatever_he_writes(pair, "jsonl", lines, his_lines(time), None)
    pair = Neighbours(tmp_path / "csv")
    text = json.loads(item) if item.startswith('"') else item
    if isinstance(text, str) and not set(text) & {",", "\n", '"'} and not any(0xD800 <= ord(c) < 0xE000 for c in text):
        same_whatever_he_writes(pair, "csv", [f"{u},{text},{NOW}".encode() for u in USERS], his_rows(NOW), None)


@pytest.mark.parametrize("time", [*TEXT_TIMES, *NUMBER_TIMES])
def test_times_of_one_kind(tmp_path: pathlib.Path, time: str) -> None:
    unit = "s" if time in NUMBER_TIMES else None
    for spelled in [f'"{time}"'] if unit is None else [time, f'"{time}"']:
        lines = [f'{{"user": "{user}", "item": "A", "timestamp": {spelled}}}'.encode() for user in TWICE]
        same_whatever_he_writes(Neighbours(tmp_path / "jsonl"), "jsonl", lines, his_lines(spelled), unit)
    same_whatever_he_writes(
        Neighbours(tmp_path / "csv"), "csv", [f"{u},A,{time}".encode() for u in USERS], his_rows(time), unit
    )


@pytest.mark.parametrize("name", FORMATS)
def test_plain_rows_of_others(tmp_path: pathlib.Path, name: str) -> None:
    """Without x' nothing in the file is odd."""
    form, pair = FORMATS[name], Neighbours(tmp_path)
    others = [form.spell(event) for event in crowd(1)]
    for source in rounds(name):
        for case in source.sample(sorted(form.hostile), 20):
            log = place(others, form.hostile[case], source.choice(PLACES), source.getrandbits(32))
            pair.write(lambda folder, rows: write(folder, form, rows), log).same()
