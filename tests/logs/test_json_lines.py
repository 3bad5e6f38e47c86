"""JSON lines: values of every kind; a broken line costs only itself."""

import json

import pytest

from dp_transforms.logs import EventFields, EventFileError, json_lines, text_files
from tests.helpers.event_files_oracle import SECRET, expected, read_all
from tests.helpers.log_files import write_json

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


@pytest.mark.parametrize(("block", "at_once"), [(50, 1024), (400, 2), (16 << 20, 1), (16 << 20, 1024)])
def test_values_of_every_kind_in_blocks_of_any_size(tmp_path, monkeypatch, block, at_once):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    monkeypatch.setattr(json_lines, "_AT_ONCE", at_once)
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
        GOOD.encode("utf-16"),
        b"\xff\xfe{\0}\0",
        "\0",
        '{"',
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
        GOOD[:-1].encode() + b"\r,\r" + b'"y":1}\r',
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
    for block, at_once in ((300, 1024), (5_000, 2), (40_000, 1024)):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
        monkeypatch.setattr(json_lines, "_AT_ONCE", at_once)
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
