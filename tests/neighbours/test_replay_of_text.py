"""CSV and JSON lines: no row of x' changes what is read of the others, nor whether the run ends in an error."""

from __future__ import annotations

import datetime
import pathlib
import random

import pytest

from dp_transforms.logs import EventFields
from tests.helpers.small_runs import START
from tests.neighbours.logs import ADDED_USER, PLACES, Log, crowd, expected_pairs, place
from tests.neighbours.replayed import FIELDS, Given, Neighbours
from tests.neighbours.text_files import FORMATS, TextFormat, write

EVENTS = crowd(1)
EXPECTED = expected_pairs(EVENTS)


def same(pair: Neighbours, form: TextFormat, log: Log, fields: EventFields = FIELDS, **layout: object) -> Given:
    """Writes both and reads both."""
    return pair.write(lambda folder, rows: write(folder, form, rows, **layout), log).same(fields)  # type: ignore[arg-type]


def lines_of(form: TextFormat) -> list[bytes]:
    """Plain lines of the others with the odd ones in between."""
    lines = [form.spell(event) for event in EVENTS]
    random.Random(2).shuffle(odd := form.odd())
    for number, line in enumerate(odd):
        lines.insert(3 * number, line)
    return lines


def cases(kind: str) -> list[tuple[str, str]]:
    """Of the two formats; what gzip does beside them, the other tests show."""
    return [(name, case) for name in ("csv", "jsonl") for case in getattr(FORMATS[name], kind)]


@pytest.mark.parametrize(("name", "case"), cases("hostile"))
def test_small_rows(tmp_path: pathlib.Path, name: str, case: str) -> None:
    form, pair = FORMATS[name], Neighbours(tmp_path)
    plain = [form.spell(event) for event in EVENTS]  # then nothing but x' is odd: readers have fast ways for that
    assert not any(b"\n" in line for line in form.hostile[case])
    source = random.Random(f"{name} {case}")
    for where, others in zip(source.sample(PLACES, 2), (lines_of(form), plain), strict=True):
        log = place(others, form.hostile[case], where, source.getrandbits(32))
        given = same(pair, form, log, line_end=source.choice([b"\n", b"\r\n"]), is_ended=source.random() < 0.7)
        assert given.pairs >= EXPECTED, where


@pytest.mark.parametrize("name", FORMATS)
def test_all_of_them_at_once_in_any_order(tmp_path: pathlib.Path, name: str) -> None:
    form, pair = FORMATS[name], Neighbours(tmp_path)
    others = lines_of(form)
    added = [line for lines in form.hostile.values() for line in lines[:50] if len(line) < 100_000]
    source = random.Random(name)
    for mark in (b"", b"\xef\xbb\xbf"):
        chosen = source.choices(added, k=source.choice([3, 30, 300]))
        log = place(others, chosen, "spread", source.getrandbits(32))
        given = same(pair, form, log, is_ended=source.random() < 0.5, mark=mark)
        assert given.pairs >= EXPECTED


@pytest.mark.parametrize(("name", "case"), cases("large"))
def test_large_rows_and_many(tmp_path: pathlib.Path, name: str, case: str) -> None:
    form, pair = FORMATS[name], Neighbours(tmp_path)
    source = random.Random(f"{name} {case}")
    log = place(lines_of(form), form.large[case], source.choice(PLACES), source.getrandbits(32))
    assert same(pair, form, log, is_ended=source.random() < 0.5).pairs >= EXPECTED


SECONDS = EventFields(time_unit="s")
BERLIN = EventFields(time_format="%d.%m.%Y %H:%M:%S", time_zone="Europe/Berlin", csv_separator=";")
# Times of x' and of others, in the words of JSON; of a form that is declared, and numbers.
ODD_TIMES = {
    SECONDS: [
        *(f"{START + 10}.75", f'"{START + 70}"', '"1.70000004e9"', '"+17e8"', "null", "true", "-0.0", "1e300", '"iso"'),
        *("9" * 30, f"{2**53 + 1}", f"{2**63 - 1}", f"{-(2**63)}", '"0x10"', '"1_0"', '""'),
    ],
    BERLIN: [
        *('"31.02.2026 10:00:00"', '"29.03.2020 02:30:00"', '"25.10.2020 02:30:00"', '"1.1.0001 0:0:0"', '"1.1.2026"'),
        *('"31.12.9999 23:59:59"', '"2026-01-01"', '""', '" "', '"\u00e4"', f'"{"0" * 20_000}"'),
    ],
}


@pytest.mark.parametrize("fields", ODD_TIMES, ids=["numbers", "a form and a zone"])
@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_a_time_is_read_by_its_own_bytes_whatever_other_times_stand_beside_it(
    tmp_path: pathlib.Path, name: str, fields: EventFields
) -> None:
    form, pair = FORMATS[name], Neighbours(tmp_path)
    separator = fields.csv_separator or ","
    form = form._replace(header=form.header and form.header.replace(b",", separator.encode()))

    def line(user: str, item: str, time: str) -> bytes:
        if name == "csv":
            return separator.join([user, item, "" if time == "null" else time.strip('"')]).encode("latin1")
        return f'{{"user": "{user}", "item": "{item}", "timestamp": {time}}}'.encode()

    def usual(second: int) -> str:
        moment = datetime.datetime.fromtimestamp(START + second + 3600, datetime.UTC)  # Berlin, in winter
        return f"{START + second}" if fields is SECONDS else f'"{moment:%d.%m.%Y %H:%M:%S}"'

    many = [line(f"u{n % 40}", "A", usual(n % 50)) for n in range(300)]
    others = [line(f"u{number % 9}", f"time {number}", time) for number, time in enumerate(ODD_TIMES[fields])]
    for time in ODD_TIMES[fields]:
        source = random.Random(f"{name} {time}")
        log = place([*many, *others, *many], [line(ADDED_USER, "A", time)] * 2, source.choice(PLACES))
        given = same(pair, form, log, fields)
        assert len({user for _, user, item in given.pairs if item == "A"}) == 40
