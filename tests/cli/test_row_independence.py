"""What one user writes decides about nobody else's rows, through `shh replay` and `shh stream --folder`.

2,000 users hold item A in one hour, far more than any threshold here; noise hides that in fewer than one of a million
runs. Beside them stand rows of one user, x', that mean harm. A is published whether they are there or not, or (for
damage, which no user of a log makes) nothing is.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import pathlib
import signal
from collections.abc import Callable

import fastavro
import pytest

from dp_transforms.cli.main import main

TIME = "2020-01-01T00:30:00Z"
MICROS = 1_577_838_600_000_000
USERS = 2_000
PLAN = [
    *("--start", "2020-01-01", "--end", "2020-01-01T02:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-6", "--mode", "hits"),
]
KEY = ["--noise-key-file", "noise.key", "--run-id", "run-1"]
# The log is older than its windows need, so that they close as soon as nothing new comes.
HISTORY = ["--clock", "event", "--out-of-order", "2h", "--idle-timeout", "1s", "--engine", "in-process"]
CSV_HEADER = "user,item,timestamp\n"
OTHERS_CSV = [f"u{n},A,{TIME}\n" for n in range(USERS)]
OTHERS_JSON = [json.dumps({"user": f"u{n}", "item": "A", "timestamp": TIME}) + "\n" for n in range(USERS)]
WITHOUT_ITEM = [json.dumps({"user": f"v{n}", "timestamp": TIME}) + "\n" for n in range(120)]
OF_X = json.dumps({"user": "x", "item": "A", "timestamp": TIME}) + "\n"


@dataclasses.dataclass(frozen=True)
class Case:
    """name: of the log file. others: its content without x'. with_x: its content with x'."""

    name: str
    others: bytes
    with_x: bytes

    @classmethod
    def of_text(cls, name: str, others: list[str], with_x: list[str]) -> Case:
        contents = ["".join(lines).encode() for lines in (others, with_x)]
        packed = [gzip.compress(content) if name.endswith(".gz") else content for content in contents]
        return cls(name, *packed)


def _avro(path: pathlib.Path, events: list[tuple[str, str]]) -> bytes:
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [
        {"name": "user", "type": "string"},
        {"name": "item", "type": "string"},
        {"name": "timestamp", "type": moment},
    ]
    schema = fastavro.parse_schema({"type": "record", "name": "E", "fields": fields})
    records = ({"user": user, "item": item, "timestamp": MICROS} for user, item in events)
    with path.open("wb") as file:
        fastavro.writer(file, schema, records, codec="deflate", sync_interval=1 << 30)
    return path.read_bytes()


def _head(_: pathlib.Path) -> Case:
    return Case.of_text("log.jsonl", [*WITHOUT_ITEM, *OTHERS_JSON], [OF_X, *WITHOUT_ITEM, *OTHERS_JSON])


def _numbers_first(_: pathlib.Path) -> Case:
    numbers = [line.replace(f'"{TIME}"', "1577838600") for line in WITHOUT_ITEM]
    return Case.of_text("log.jsonl.gz", OTHERS_JSON, [line.replace('"v', '"x') for line in numbers] + OTHERS_JSON)


def _csv_numbers_first(_: pathlib.Path) -> Case:
    return Case.of_text("log.csv", [CSV_HEADER, *OTHERS_CSV], [CSV_HEADER, *["x,A,1577838600\n"] * 20, *OTHERS_CSV])


def _long_label(folder: pathlib.Path) -> Case:
    others = [(f"u{n}", "A") for n in range(USERS)]
    with_x = [*others[:1_000], ("x", "b" * (17 << 20)), *others[1_000:]]
    return Case("log.avro", _avro(folder / "scratch", others), _avro(folder / "scratch", with_x))


def _long_cell(_: pathlib.Path) -> Case:
    return Case.of_text(
        "log.csv",
        [CSV_HEADER, *OTHERS_CSV],
        [CSV_HEADER, OTHERS_CSV[0], f"x,{'b' * (9 << 20)},{TIME}\n", *OTHERS_CSV[1:]],
    )


def _long_line(_: pathlib.Path) -> Case:
    long = json.dumps({"user": "x", "item": "b" * (20 << 20), "timestamp": TIME}) + "\n"
    return Case.of_text("log.jsonl.gz", OTHERS_JSON, [OTHERS_JSON[0], long, *OTHERS_JSON[1:]])


def _open_quote(_: pathlib.Path) -> Case:
    return Case.of_text("log.csv", [CSV_HEADER, *OTHERS_CSV], [CSV_HEADER, f'x,"A,{TIME}\n', *OTHERS_CSV])


def _two_quotes(_: pathlib.Path) -> Case:
    with_x = [CSV_HEADER, OTHERS_CSV[0], f'x,"A,{TIME}\n', *OTHERS_CSV[1:], f'x,A",{TIME}\n']
    return Case.of_text("log.csv", [CSV_HEADER, *OTHERS_CSV], with_x)


def _marks_and_nul(_: pathlib.Path) -> Case:
    odd = [f"\ufeffx,\0,{TIME}\n", "x\r", f"x,A\r,{TIME}\n", f"x,A,{TIME},\n", "\0\n"]
    return Case.of_text("log.csv", [CSV_HEADER, *OTHERS_CSV], [CSV_HEADER, *odd[:4], *OTHERS_CSV, *odd])


CASES = [
    _head,
    _numbers_first,
    _csv_numbers_first,
    _long_label,
    _long_cell,
    _long_line,
    _open_quote,
    _two_quotes,
    _marks_and_nul,
]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "noise.key").write_bytes(os.urandom(32))
    (tmp_path / "noise.key").chmod(0o600)
    return tmp_path


def _run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        main(words)
        code = 0
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    return code, capsys.readouterr().err


def _replay(output: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    return _run(["replay", "logs", *PLAN, "--max-bad-fraction", "0.5", "--output", output, *more], capsys)


def _items(path: pathlib.Path) -> list[str]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [hitter["item"] for line in lines for hitter in line.get("heavy_hitters", ())]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.strip("_"))
def test_replay(folder: pathlib.Path, capsys: pytest.CaptureFixture[str], case: Callable[[pathlib.Path], Case]) -> None:
    found = case(folder)
    for name, content in (("others", found.others), ("with_x", found.with_x)):
        (folder / "logs" / found.name).write_bytes(content)
        code, err = _replay(f"{name}.jsonl", capsys)
        assert code == 0, err
        assert _items(folder / f"{name}.jsonl") == ["A"], name


@pytest.mark.parametrize(
    "case", [_head, _long_label, _long_cell, _two_quotes], ids=lambda case: case.__name__.strip("_")
)
def test_stream_from_a_folder(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], case: Callable[[pathlib.Path], Case]
) -> None:
    found = case(folder)
    for name, content in (("others", found.others), ("with_x", found.with_x)):
        (folder / "logs" / found.name).write_bytes(content)
        code, err = _run(["stream", "--folder", "logs", *PLAN, *KEY, *HISTORY, "--output", name], capsys)
        assert code == 0, err
        reports = [path for path in (folder / name).iterdir() if "A" in path.read_text(errors="replace")]
        assert sum('"item"' in path.read_text() for path in reports) == 1, name


@pytest.mark.parametrize("command", ["replay", "stream"])
def test_damage_and_wrong_quotes_publish_nothing(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """What cannot be read row by row is named in an error, and the rest of it is not rejected in silence."""
    text = "".join([CSV_HEADER, *OTHERS_CSV])
    over_lines = ["--csv-line-ends-in-cells"]
    for name, content, options, words in (
        ("a.csv.gz", gzip.compress(text.encode()) + b"garbage", [], ["a.csv.gz: it is damaged"]),
        (
            "b.csv",
            f'{text}x,"A,{TIME}\n'.encode(),
            over_lines,
            [f"b.csv: the quote that opens in line {USERS + 2} is not closed"],
        ),
        ("c.csv", text.encode("utf-16"), [], ["c.csv: it is UTF-16 text"]),
        ("d.avro", _avro(folder / "scratch", [("u", "A")])[:-3], [], ["d.avro: it is damaged"]),
    ):
        path = folder / "logs" / name
        path.write_bytes(content)
        if command == "replay":
            code, err = _replay("report.jsonl", capsys, *options)
            assert not (folder / "report.jsonl").exists()
        else:
            code, err = _run(
                ["stream", "--folder", "logs", *PLAN, *KEY, *HISTORY, *options, "--output", f"out-{name}"], capsys
            )
            # Depending on whether its first rows were given in a poll of their own.
            assert "Move it out of the folder" in err or "start a new run" in err
            assert not any('"item"' in report.read_text() for report in (folder / f"out-{name}").rglob("*.json*"))
        assert code == 1, err
        for word in words:
            assert word in err
        path.unlink()


def test_cells_with_line_ends_are_read_where_it_was_declared(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f'u{n},"A\nB",{TIME}\n' for n in range(USERS)]
    (folder / "logs" / "log.csv").write_text("".join([CSV_HEADER, *rows]))
    code, err = _replay("report.jsonl", capsys, "--csv-line-ends-in-cells")
    assert (code, _items(folder / "report.jsonl")) == (0, ["A\nB"]), err
    code, err = _replay("other.jsonl", capsys)
    assert code == 1
    assert "of --max-bad-fraction; nothing was published" in err


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        (
            "log.jsonl",
            "".join(WITHOUT_ITEM),
            "has a field 'item'. Name it with --item-field.",
        ),
        (
            "log.jsonl",
            "".join(OTHERS_JSON).replace(f'"{TIME}"', "1577838600"),
            "Give the unit with --time-unit s, ms or us.",
        ),
        ("log.csv", "".join([CSV_HEADER, *["u,i,1577838600\n"] * 200]), "Give the unit with --time-unit s, ms or us."),
        ("log.jsonl", "".join(OTHERS_CSV), "is a JSON object. Write one object per line."),
    ],
)
def test_a_replay_in_which_all_was_rejected_says_what_it_may_be(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str, content: str, hint: str
) -> None:
    (folder / "logs" / name).write_text(content)
    code, err = _replay("report.jsonl", capsys)
    assert code == 1
    assert len(err.strip().splitlines()) == 1
    assert "of --max-bad-fraction; nothing was published" in err
    assert f"Perhaps: logs/{name}: " in err
    assert hint in err


@pytest.mark.parametrize(
    ("name", "content"), [("log.jsonl", b""), ("log.csv", b""), ("log.csv", CSV_HEADER.encode()), ("log.avro", None)]
)
def test_a_log_without_rows_gives_an_empty_report_where_that_is_asked_for(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None
) -> None:
    """Where readers see whether there is one: else the only row of one user decides that."""
    (folder / "logs" / name).write_bytes(_avro(folder / "scratch", []) if content is None else content)
    code, err = _replay("report.jsonl", capsys)
    assert code == 4
    assert err.startswith("shh: the log has no rows. No report was written, and nothing is spent.")
    assert err.count("\n") == 1
    assert not (folder / "report.jsonl").exists()
    code, err = _replay("report.jsonl", capsys, "--allow-empty")
    assert code == 0, err
    assert "The log has no rows." in err
    assert _items(folder / "report.jsonl") == []
    assert len((folder / "report.jsonl").read_text().splitlines()) == 1  # the header


def test_a_replay_without_events_in_the_range_keeps_the_list_of_rows_that_cannot_be_read(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list without rows takes no name: the same command must do for the log when it is mended."""
    log, bad = folder / "logs" / "log.csv", folder / "bad.jsonl"
    outside = "u,i,2021-01-01T00:00:00Z\n" * 2
    log.write_text(CSV_HEADER + outside)
    code, err = _replay("report.jsonl", capsys, "--dead-letter", "bad.jsonl")
    assert (code, bad.exists()) == (4, False)
    log.write_text(CSV_HEADER + outside + "u,i,never\n")
    code, err = _replay("report.jsonl", capsys, "--dead-letter", "bad.jsonl")
    assert code == 4
    assert "2 are outside, 1 rows cannot be read" in err
    assert "bad.jsonl lists those rows." in err
    assert len(bad.read_text().splitlines()) == 1
    assert not (folder / "report.jsonl").exists()
