"""JSON lines: values of every kind; a broken line costs only itself."""

import json

import numpy as np
import pytest

from dp_transforms.logs import EventFields, EventFileError, id_columns, json_lines, text_files
from tests.helpers.event_files_oracle import SECRET, expected, read_all, write_json

TIME = "2017-10-01T03:00:00Z"
MICROS = 1_506_826_800_000_000
GOOD = '{"user":"u","item":"i","timestamp":"2017-10-01T03:00:00Z"}'
BIG = 10**40 + 7
MARK = text_files.UTF8_MARK
ROWS = [
    ("7", "a", TIME),
    (7, 7, TIME),
    ("007", BIG, "2017-10-01"),
    (None, "a", TIME),
    ("", "a", TIME),
    (7.0, "a", TIME),
    (True, "a", TIME),
    ("u", {"x": SECRET}, TIME),
    ("u", [SECRET], TIME),
    ("u", "a", None),
    ("u", "a", True),
    ("u", "a", {"x": 1}),
    ("u", "a", 1506826800),
    ("u", "a", "yesterday"),
    ("\ud800", "a", TIME),
    ("u", SECRET + "\udc00", TIME),
    ("\0", "ä€𝄞", TIME),
]


def _write(path, *lines):
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return str(path)


@pytest.mark.parametrize("block", [50, 400, 16 << 20])
def test_values_of_every_kind_in_blocks_of_any_size(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    rows = ROWS[:3] * 5 + ROWS + ROWS[:1] * 9
    assert read_all(write_json(tmp_path / "log.jsonl", rows)) == expected(rows)


def test_broken_lines_cost_nothing_but_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 40_000)
    long = f'{{"user":"{SECRET}","item":"i","timestamp":"{TIME}","x":"%s"}}'
    broken = [
        SECRET,
        f'{{"user":"{SECRET}"',
        f'["{SECRET}"]',
        "null",
        f'{GOOD[:-1]},"x":NaN}}',
        f'{GOOD[:-1]},"x":[-Infinity]}}',
        f'{GOOD[:-1]},"x":Inf}}',
        f'{GOOD[:-1]},"x":{"[" * 201}{"]" * 201}}}',
        f'{GOOD[:-1]},"x":{"[" * 20_000}',
        f'{GOOD[:-1]},"x":{"[" * 15_000}{"]" * 15_000}}}',
        f"{GOOD}{GOOD}",
        f"{GOOD},",
        f"{GOOD}\0",
        f'{GOOD[:-1]},"x":01}}',
        f'{GOOD[:-1]},"x":"\t"}}',
        long % ("y" * 40_000),
        long % ("y" * 90_000),
    ]
    fine = [
        GOOD,
        f"  {GOOD} \r",
        GOOD.replace("user", "us\\u0065r"),
        f'{{"user":"{SECRET}",{GOOD[1:]}',
        f'{GOOD[:-1]},"x":{{"user":1,"user":2}},"x":3}}',
        f'{GOOD[:-1]},"x":1e400,"y":{"9" * 5000}}}',
        f'{GOOD[:-1]},"x":{"[" * 199}{"]" * 199}}}',
        f'{GOOD[:-1]},"x":"\\"{"[{" * 2_000}"}}',
        f'{GOOD[:-1]},"x":"\\ud800: NaN, Info"}}',
        GOOD[:-1].encode() + b',"x":"\xff"}',
        long.replace(SECRET, "u") % ("y" * (40_000 - len(long.replace(SECRET, "u")) + 2)),
    ]
    lines = []
    positions = []
    for n in range(max(len(broken), len(fine))):
        for kind in (broken, fine):
            if n < len(kind):
                lines += [kind[n], "", GOOD, " \t"]
                if kind is broken:
                    positions.append(len(lines) - 3)
    count = len(fine) + len(broken) + len(fine)
    for block in (300, 5_000, 40_000):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
        events, rejected = read_all(_write(tmp_path / "log.jsonl", *lines))
        assert rejected == {"broken line": positions[:-2], "line too long": positions[-2:]}
        assert events == [("u", "i", MICROS)] * count


@pytest.mark.parametrize("name", ["a/b", "ü"])
def test_a_field_may_be_spelled_in_any_way(tmp_path, name):
    event = {name: "u", "item": "i", "timestamp": TIME}
    lines = [json.dumps(event), json.dumps(event, ensure_ascii=False), json.dumps(event).replace("/", "\\/")]
    assert read_all(_write(tmp_path / "log.jsonl", *lines), EventFields(user=name)) == ([("u", "i", MICROS)] * 3, {})


def test_a_name_that_is_always_escaped_is_refused(tmp_path):
    with pytest.raises(EventFileError, match="may have a quote or a backslash"):
        read_all(_write(tmp_path / "log.jsonl", GOOD), EventFields(user='a "b"'))


def _lines(lines, fields):
    """By the number of each line that is not blank its event, or why it is not one."""
    numbers = np.array([number for number, line in enumerate(lines, 1) if line.strip(b" \t\r")], np.int64)
    filled = [line for line in lines if line.strip(b" \t\r")]
    columns, is_kept = json_lines.JsonDecoder(fields).decode(
        text_files.lines_of(b"".join(line + b"\n" for line in filled))
    )
    broken = {"broken line": np.flatnonzero(~is_kept)}
    batch, rows, rejected = id_columns.events_of("log", columns, np.flatnonzero(is_kept), broken, numbers.take)
    cells = zip(batch.user.to_pylist(), batch.item.to_pylist(), batch.time_micros.tolist(), strict=True)
    found = dict(zip(numbers[rows].tolist(), cells, strict=True))
    return found | {number: part.reason for part in rejected for number in part.positions}


_HOSTILE = [
    b'{"user":1}{"user":2}',
    b'{"user":3,',
    b'"item":4}',
    b'{"user":"b","x":NaN}',
    b'{"user":7,"item":"x","timestamp":"1"}',
    b'{"user":1,"item":2,"timestamp":9007199254740993}',
    b'{"user":true,"item":[],"timestamp":{}}',
    b'{"user":"a\xffb","item":"\xed\xa0\x80","timestamp":1}',
    b'{"user":"u","item":"i"}',
    GOOD.encode("utf-16"),
    GOOD.encode("utf-16-be"),
    b"\xef\xbb\xbf" + GOOD.encode(),
    b"\xef\xbb\xbf",
    b"\xff\xfe{\0}\0",
    GOOD.encode() + GOOD.encode(),
    GOOD.encode()[:-1] + b',"x":1e400,"y":NaN}',
    GOOD.encode()[:-1] + b',"user":"x"}',
    GOOD.encode()[:-1] + b"\r,\r" + b'"y":1}\r',
    b'{"user":18446744073709551616,"item":-0,"timestamp":1e3}',
    b'{"user":"\\ud800","item":"i\\u0000","timestamp":9007199254740993}',
    b'{"user":"x","item":"i","timestamp":0.5}',
    b"{" * 300 + b"}" * 300,
    b"\0",
    b'{"',
    b"{}",
    b"[",
]


@pytest.mark.parametrize("unit", [None, "s", "us"])
@pytest.mark.parametrize("at_once", [1, 2, 1024])
def test_each_line_is_what_it_is_alone(monkeypatch, unit, at_once):
    monkeypatch.setattr(json_lines, "_AT_ONCE", at_once)
    fields = EventFields(time_unit=unit)
    for usual in (GOOD.encode(), b'{"user":7,"item":8,"timestamp":1506826800}'):
        lines = [line for odd in _HOSTILE for line in (usual, odd)]
        alone = [_lines([line], fields) for line in lines]
        assert _lines(lines, fields) == {number: one[1] for number, one in enumerate(alone, 1) if one}


def test_a_mark_is_passed_over_at_the_front_of_every_line_and_nowhere_else(tmp_path):
    good = GOOD.encode()
    lines = [MARK + good, good, MARK + good, MARK + MARK + good, good + MARK, b" " + MARK + b" " + good, MARK]
    for begin in (0, 6):  # whichever line is the first one
        turned = lines[begin:] + lines[:begin]
        broken = [at for at, line in enumerate(turned, 1) if line in (lines[3], lines[4], lines[6])]
        wanted = ([("u", "i", MICROS)] * 4, {"broken line": broken})
        assert read_all(_write(tmp_path / "log.jsonl", *turned)) == wanted
    inside = good.replace(b'"u"', b'"u' + MARK + b'"')
    assert read_all(_write(tmp_path / "log.jsonl", inside))[0] == [("u\ufeff", "i", MICROS)]
