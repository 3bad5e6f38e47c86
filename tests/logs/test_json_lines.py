"""JSON lines: values of every kind; a broken line costs only itself."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
        f'{GOOD[:-1]},"x":"{"[{" * 2_000}"}}',
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


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3))
_ANYTHING = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
)
_IDS = st.one_of(
    st.text(max_size=4), st.integers(-(2**64), 2**64), st.sampled_from(["", "\ud800", 7, "7", -0]), _ANYTHING
)
_TIMES = st.one_of(
    st.sampled_from([TIME, "2017-10-01", "", "x", 1506826800, 2**53 + 1, 1.5, -0.0]),
    st.integers(),
    st.floats(),
    _ANYTHING,
)


@st.composite
def _blocks(draw):
    """Lines that are mostly of one kind, so that often the fast way can read them, and a few odd ones."""
    user, item, time = (
        draw(st.sampled_from([st.text(min_size=1, max_size=4), st.integers(0, 99), st.just("a"), _IDS])),
        draw(st.sampled_from([st.text(max_size=4), st.integers(-5, 99), _IDS])),
        draw(st.sampled_from([st.just(TIME), st.integers(0, 10**10), st.floats(0, 1e10), _TIMES])),
    )
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        event = {"user": draw(user), "item": draw(item), "timestamp": draw(time), "x": draw(_ANYTHING)}
        if draw(st.integers(0, 9)) == 0:
            del event[draw(st.sampled_from(sorted(event)))]
        line = json.dumps(event, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
        if draw(st.integers(0, 9)) == 0:
            at = draw(st.integers(0, len(line)))
            put = draw(
                st.sampled_from(
                    [b"", b"\xff", b"}", b"{", b"\n", b"\0", b'"', b"\\", b'"user":1,', b" ", b"\r", b"\xef\xbb\xbf"]
                )
            )
            line = line[:at] + put + line[at + draw(st.integers(0, 2)) :]
        lines.append(line)
    return draw(st.sampled_from([b"\n", b"\r\n", b"\n\n "])).join(lines)


def _lines(lines, fields, first=1):
    """By the number of each line that is not blank its event, or why it is not one."""
    numbers = np.array([number for number, line in enumerate(lines, first) if line.strip(b" \t\r")], np.int64)
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


@given(
    block=_blocks(),
    hostile=st.none() | st.sampled_from(_HOSTILE),
    at=st.integers(0, 9),
    unit=st.sampled_from([None, "s", "us"]),
    at_once=st.sampled_from([1, 2, 1024]),
)
@example(b'{"user":1}{"user":2}\n\n{"user":3,\n"item":4}', None, 0, None, 1024)
@example(b'{"user":"a"}\n{"user":"b","x":NaN}', None, 0, None, 1024)
@example(b'{"user":"a","item":1,"timestamp":1}\n{"user":7,"item":"x","timestamp":"1"}', None, 0, "s", 1024)
@example(b'{"user":1,"item":2,"timestamp":1.5}\n{"user":1,"item":2,"timestamp":9007199254740993}', None, 0, "us", 2)
def test_each_line_is_what_it_is_alone(block, hostile, at, unit, at_once):
    fields, lines = EventFields(time_unit=unit), block.split(b"\n")
    if hostile is not None:
        lines.insert(at, hostile)
    alone = {line: _lines([line], fields, 7) for line in lines}
    wanted = {number: found for number, line in enumerate(lines, 1) for found in alone[line].values()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "_AT_ONCE", at_once)
        assert _lines(lines, fields) == wanted


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
