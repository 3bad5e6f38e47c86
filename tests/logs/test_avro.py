"""Avro logs: every type of id and time, records that are rejected, and files that mean harm."""

import decimal
import json

import fastavro
import pyarrow as pa
import pytest

from dp_transforms.logs import EventFields, EventFileError, avro, find_log_chunks
from dp_transforms.stores import avro_container
from tests.helpers import avro_bytes
from tests.helpers.avro_bytes import PACK, zigzag
from tests.helpers.event_files_oracle import SECRET, expected, read_all
from tests.helpers.log_files import NAMES, avro_schema, write_avro

TIME = 1_506_826_800_000_000
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
ROWS = [
    ("7", "a", TIME),
    ("007", "ä€𝄞", TIME + 1),
    (None, "a", TIME),
    ("", "a", TIME),
    ("u", None, TIME),
    ("u", "", None),
    ("u", "a", None),
    ("\0", " ", -1),
    ("u", "a", 2**62),
] * 40


@pytest.mark.parametrize(("codec", "interval"), [("null", 1), ("deflate", 300), ("null", 16_000)])
def test_records_in_blocks_of_any_size(tmp_path, monkeypatch, codec, interval):
    types = (["null", "string"], ["null", "string"], ["null", MICROS])
    path = write_avro(tmp_path / "log.avro", ROWS, types, codec, interval)
    for rows_together, values_at_once in ((1 << 18, 1 << 20), (1, 1 << 20), (100, 1 << 20), (100, 1), (1 << 18, 30)):
        monkeypatch.setattr(avro, "_BLOCK_ROWS", rows_together)
        monkeypatch.setattr(avro, "_VALUES_AT_ONCE", values_at_once)
        assert read_all(path) == expected(ROWS, "us")


@pytest.mark.parametrize(
    ("types", "rows", "unit"),
    [
        (("int", "long", MICROS), [(-(2**31), 2**63 - 1, 5), (7, -(2**63), 6)], "us"),
        ((["null", "long"], ["string", "long", "null"], MICROS), [(None, "7", 5), (7, 7, 6), (8, None, 7)], "us"),
        (("bytes", "string", MICROS), [(b"u", "i", 1), (b"\xff", "i", 2), (b"", "i", 3)], "us"),
        (("string", "string", MILLIS), [("u", "i", -7), ("u", "i", 2**60)], "ms"),
        (("string", "string", LOCAL), [("u", "i", 7)], "us"),
        (("string", "string", "long"), [("u", "i", 1_506_826_800), ("u", "i", 2**60)], "s"),
        (("string", "string", "double"), [("u", "i", 1.25), ("u", "i", float("nan")), ("u", "i", 1e300)], "ms"),
        (("string", "string", ["null", "string"]), [("u", "i", "2017-10-01"), ("u", "i", None)], None),
        (("string", "string", "string"), [("u", "i", "1506826800"), ("u", "i", "x")], "s"),
        (("null", "string", MICROS), [(None, "i", 5)] * 2, "us"),
        (("string", ENUM, MICROS), [("u", "B", 5), ("u", "A", 6)], "us"),
        ((["null", ENUM], "string", MICROS), [("A", "i", 5), (None, "i", 6)], "us"),
        (("string", "string", "null"), [("u", "i", None)] * 2, None),
    ],
)  # fmt: skip
def test_types_of_ids_and_times(tmp_path, types, rows, unit):
    path = write_avro(tmp_path / "log.avro", rows, types)
    assert read_all(path, EventFields(time_unit=unit)) == expected(rows, unit)


def test_dates_and_nanoseconds(tmp_path):
    for kind, value, found in (
        (DATE, 17_440, ([("u", "i", 1_506_816_000_000_000)], {})),
        (DATE, 2**31 - 1, ([], {"bad time": [1]})),
        (NANOS, TIME * 1000 + 1_999, ([("u", "i", TIME + 1)], {})),
    ):
        assert read_all(write_avro(tmp_path / "log.avro", [("u", "i", value)], ("string", "string", kind))) == found


OTHERS = {
    "e": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
    "d": ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, decimal.Decimal("1.25")),
    "b": (["boolean", "float", "null"], True),
}


def test_other_fields_are_passed_over(tmp_path):
    extra = [{"name": name, "type": kind} for name, (kind, _) in OTHERS.items()]
    record = {name: value for name, (_, value) in OTHERS.items()}
    rows = [(f"u{n}", "i", n) for n in range(50)]
    with open(tmp_path / "log.avro", "wb") as file:
        events = [{**record, **dict(zip(NAMES, row, strict=True))} for row in rows]
        fastavro.writer(file, avro_schema(("string", "string", MICROS), extra), events)
    assert read_all(str(tmp_path / "log.avro")) == expected(rows, "us")


@pytest.mark.parametrize(
    ("types", "unit", "words"),
    [
        (("double", "string", MICROS), None, "'user' has type double"),
        (("string", ["null", "boolean"], MICROS), None, "'item' has type boolean"),
        (("string", [ENUM, "string"], MICROS), None, "'item' has type enum or string"),
        (("string", "string", ENUM), "s", "'timestamp' has type enum"),
        (("string", {"type": "bytes", "logicalType": "decimal", "precision": 3}, MICROS), None, "type decimal;"),
        (("string", "string", "long"), None, "--time-format s, ms or us"),
        (("string", "string", "boolean"), "s", "'timestamp' has type boolean"),
        (("string", "string", ["long", "string"]), "s", "'timestamp' has type long or string"),
    ],
)
def test_a_field_that_cannot_be_an_id_or_a_time_is_named_with_its_type(tmp_path, types, unit, words):
    path = write_avro(tmp_path / "log.avro", [], types)
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([path], EventFields(time_unit=unit))
    assert words in str(caught.value)


def _cell(data):
    return zigzag(len(data)) + data


def _file(schema, blocks, codec="null"):
    """A container with claims of one's own choice: (number of records, bytes)."""
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    return avro_bytes.avro_container({"avro.schema": text, "avro.codec": codec.encode()}, blocks)


EVENT = _cell(b"u") + _cell(b"i") + zigzag(TIME)
PLAIN = avro_schema(("string", "string", MICROS))


def _read(tmp_path, data):
    (tmp_path / "log.avro").write_bytes(data)
    return read_all(str(tmp_path / "log.avro"))


@pytest.mark.parametrize("codec", PACK)
def test_every_codec_is_unpacked_and_an_empty_block_is_none(tmp_path, codec):
    blocks = [(1, PACK[codec](EVENT)), (0, PACK[codec](b"")), (2, PACK[codec](EVENT * 2))]
    assert _read(tmp_path, _file(PLAIN, blocks, codec)) == ([("u", "i", TIME)] * 3, {})


def _deep(levels):
    schema = "int"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


_ENDLESS = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
_EMPTY = {"type": "record", "name": "Z", "fields": []}
_DOUBLING = [{"name": "d0", "type": {"type": "record", "name": "D0", "fields": []}}]
for _n in range(1, 25):
    _twice = [{"name": "a", "type": f"D{_n - 1}"}, {"name": "b", "type": f"D{_n - 1}"}]
    _DOUBLING.append({"name": f"d{_n}", "type": {"type": "record", "name": f"D{_n}", "fields": _twice}})


@pytest.mark.parametrize(
    "kind",
    [
        *(_ENDLESS, _deep(200), {"type": "array", "items": "null"}, {"type": "array", "items": _EMPTY}),
        {"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}},
        *({"type": "fixed", "name": "Z", "size": size} for size in (2**40, -1)),
        *("no.such.type", [["null"]], [], 7, {"type": "record", "name": "Z", "fields": 7}),
        {"type": "enum", "name": "Z", "symbols": [1]},
        *({"type": "enum", "name": ["Z"]}, None, ["null", {"type": "map", "values": "double"}]),
    ],
    ids=str,
)
def test_a_schema_that_is_not_flat_which_could_end_the_process_or_never_end_is_refused(tmp_path, kind):
    """By an error, before anything is decoded. None: each record has twice as many values as the one before it."""
    schema = avro_schema(("string", "string", MICROS), [{"name": "x", "type": kind}] if kind else _DOUBLING)
    with pytest.raises(
        EventFileError, match=r"log\.avro: its schema is not one of flat records.*: fastavro OLD\.avro > NEW\.jsonl"
    ):
        _read(tmp_path, _file(schema, [(1, zigzag(20_000_000) + b"\0" + EVENT)]))


def test_hostile_headers(tmp_path):
    for schema in (b"[" * 100_000, b"{", b'"string"', b"\xff", b"", b'{"type":"record","fields":[]}', b"[" * 2_000_000):
        with pytest.raises(EventFileError, match=r"log\.avro: "):
            _read(tmp_path, _file(schema, []))
    for data in (b"Obj\x01", b"Obj\x01" + zigzag(2**60), b"Obj\x01" + b"\xff" * 50, b"PAR1", b"Obj\x01\x02\x7f"):
        with pytest.raises(EventFileError, match=r"it is damaged, or not in Avro format\."):
            _read(tmp_path, data)
    with pytest.raises(EventFileError, match=r"its codec is not supported\. Write it with one of null, deflate"):
        _read(tmp_path, _file(PLAIN, [(1, EVENT)], SECRET))


NULLABLE = avro_schema((["null", "string"], ["null", "string"], ["null", MICROS]))
_HIDDEN = _cell(SECRET.encode())


@pytest.mark.parametrize("values_at_once", [1 << 20, 1], ids=["at once", "in parts"])
@pytest.mark.parametrize(
    ("schema", "block"),
    [
        *((PLAIN, block) for block in ((10**15, EVENT), (2, EVENT), (1, EVENT * 2), (0, EVENT), (-1, EVENT))),
        (PLAIN, (1, EVENT + zigzag(1) + EVENT)),  # as a further block of an array
        *((PLAIN, (1, _HIDDEN + zigzag(length) + EVENT)) for length in (-5, 2**50)),
        *((NULLABLE, block) for block in ((20_000_000, b"\0\0\0"), (1, zigzag(9) + _HIDDEN))),
    ],
)
def test_a_block_that_claims_what_it_does_not_hold_is_damaged(tmp_path, monkeypatch, schema, block, values_at_once):
    monkeypatch.setattr(avro, "_VALUES_AT_ONCE", values_at_once)
    first = EVENT if schema is PLAIN else b"\x02" + _cell(b"u") + b"\x02" + _cell(b"i") + b"\x02" + zigzag(TIME)
    with pytest.raises(EventFileError, match=r"it is damaged after row [12], or not in Avro format\.") as caught:
        _read(tmp_path, _file(schema, [(1, first), block]))
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_container_that_is_cut_or_has_other_markers_is_damaged(tmp_path):
    whole = _file(PLAIN, [(1, EVENT), (1, EVENT)])
    for data in (*(whole[:-cut] for cut in (1, 10, 17, 18, 29)), whole[:-1] + b"x"):
        with pytest.raises(EventFileError, match="it is damaged after row 1"):
            _read(tmp_path, data)
    with pytest.raises(EventFileError, match="it is damaged after row 2"):
        _read(tmp_path, whole + b"\x80")  # a number that does not end
    for data in (b"", pa.Codec("snappy").compress(EVENT, asbytes=True) + bytes(4)):
        with pytest.raises(EventFileError, match="it is damaged after row 0"):
            _read(tmp_path, _file(PLAIN, [(1, data)], "snappy"))


@pytest.mark.parametrize("codec", PACK)
def test_a_block_that_unpacks_to_more_than_the_limit_ends_the_reading(tmp_path, monkeypatch, codec):
    monkeypatch.setattr(avro_container, "MAX_BLOCK_BYTES", 1 << 20)
    fits = _cell(bytes((1 << 20) - 5)) + b"\0\0"  # a long user, an empty item and the year 1970
    assert len(fits) == 1 << 20
    assert _read(tmp_path, _file(PLAIN, [(1, PACK[codec](fits))], codec)) == (
        [],
        {"user is longer than 16,384 bytes": [1]},
    )
    more = PACK[codec](_cell(bytes((1 << 20) - 4)) + b"\0\0")
    with pytest.raises(EventFileError, match=r"a block of more than 1 MB after row 1\. Write it with smaller blocks"):
        _read(tmp_path, _file(PLAIN, [(1, PACK[codec](EVENT)), (1, more)], codec))
