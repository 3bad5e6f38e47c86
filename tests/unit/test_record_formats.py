"""Values of records: judged as the same lines and records in log files are, each by itself."""

import io
import json

import fastavro
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_transforms.logs import EventFields, EventFileError, find_log_chunks, json_lines
from dp_transforms.logs.record_spans import RecordSpans
from dp_transforms.logs.streams import record_formats
from dp_transforms.logs.streams.record_formats import record_decoder
from tests.helpers.event_files_oracle import SECRET, avro_schema, expected, read_chunks

TIME = "2017-10-01T03:00:00Z"
MICROS = 1_506_826_800_000_000
TICKS = {"type": "long", "logicalType": "timestamp-micros"}
GOOD = b'{"user":"u","item":"i","timestamp":"2017-10-01T03:00:00Z"}'
FIRST = 1_000  # the position of the first value


def _decode(decoder, values):
    """Events and rejected positions by reason, counted from 1; checks on the way what always holds."""
    positions = np.arange(FIRST, FIRST + len(values))
    decoded = decoder.decode("topic:0", values, positions)
    rejected = {part.reason: sorted(position - FIRST + 1 for position in part.positions) for part in decoded.rejected}
    assert len(rejected) == len(decoded.rejected)
    assert all(part.source == "topic:0" and SECRET not in part.reason for part in decoded.rejected)
    places = (decoded.rows + 1).tolist() + [position for part in rejected.values() for position in part]
    assert sorted(places) == list(range(1, len(values) + 1))
    assert np.all(np.diff(decoded.rows) > 0)
    batch = decoded.batch
    events = zip(batch.user.to_pylist(), batch.item.to_pylist(), batch.time_micros.tolist(), strict=True)
    return list(events), rejected


def _json_decoder():
    return record_decoder("json", EventFields())


cells = st.one_of(
    st.sampled_from([7, "7", "007", "", None, True, 1.5, TIME, "yesterday", "\ud800", [1], {"a": "b"}]),
    st.text(max_size=4),
)
rows = st.tuples(cells, cells, st.one_of(st.just(TIME), cells)).map(
    lambda row: json.dumps(dict(zip(("user", "item", "timestamp"), row, strict=True))).encode()
)
hostile = st.one_of(
    st.binary(max_size=40).filter(lambda value: b"\n" not in value),
    st.sampled_from(
        [
            SECRET.encode(),
            GOOD[:-1],
            GOOD + b"x",
            GOOD + GOOD,
            b"[" + GOOD + b"]",
            b"{" * 300 + b"}" * 300,
            GOOD[:-1] + b',"x":NaN}',
            GOOD[:-1] + b',"user":"again"}',
            b'{"user":"\xff","item":"i","timestamp":"2017-10-01T03:00:00Z"}',
            b"  " + GOOD + b"\t\r",
            b"\xef\xbb\xbf" + GOOD,
        ]
    ),
)


# How many lines are few, how small parts become, how many may fail: from one by one to one call for each line.
SPANS = st.sampled_from([(0, 1, 1_000), (0, 3, 1_000), (2, 4, 1), (0, 100, 100), (1_000, 100, 100)])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.one_of(st.none(), st.just(GOOD), rows, hostile), max_size=12), min_size=1, max_size=4), SPANS
)
def test_json_values_are_read_as_lines_of_a_file_whatever_was_read_before(tmp_path, monkeypatch, polls, spans):
    """A record without a value, or of blanks alone, is reported; such a line is not one."""
    few, smallest, failures = spans
    monkeypatch.setattr(json_lines, "_FEW_LINES", few)
    monkeypatch.setattr(json_lines, "_SMALL_SPAN", smallest)
    monkeypatch.setattr(RecordSpans, "most_failures", failures)
    decoder, path = record_decoder("json", EventFields()), tmp_path / "log.jsonl"
    for values in polls:
        path.write_bytes(b"\n".join(value or b"" for value in values))
        events, rejected = read_chunks(find_log_chunks([str(path)], EventFields()), EventFields())
        found, reasons = _decode(decoder, values)
        blank = reasons.pop(record_formats.NO_VALUE, [])
        assert blank == [row for row, value in enumerate(values, 1) if not (value or b"").strip(b" \t\r\n")]
        broken = reasons.pop(record_formats.BROKEN_RECORD, None)
        assert (found, reasons | ({"broken line": broken} if broken else {})) == (events, rejected)


def test_an_odd_json_value_among_many_slows_only_its_neighbours(monkeypatch):
    slow_lines = 0
    read_one_by_one = json_lines.read_one_by_one

    def counted(lines, fields):
        nonlocal slow_lines
        slow_lines += len(lines)
        return read_one_by_one(lines, fields)

    monkeypatch.setattr(json_lines, "read_one_by_one", counted)
    good = [b'{"user":"%d","item":"i","timestamp":"2017-10-01T03:00:00Z"}' % n for n in range(8_000)]
    decoder = _json_decoder()
    for odd in ({}, {0: SECRET.encode(), 7_777: GOOD[:-1] + b',"x":NaN}'}, {}):  # the first one: among those looked at
        values = [odd.get(n, value) for n, value in enumerate(good)]
        events, rejected = _decode(decoder, values)
        assert events == [(str(n), "i", MICROS) for n in range(8_000) if n not in odd]
        assert [*rejected.values()] == ([[row + 1 for row in odd]] if odd else [])
        assert slow_lines <= 128 * len(odd)
        slow_lines = 0
    assert _decode(_json_decoder(), [SECRET.encode(), *good])[1] == {record_formats.BROKEN_RECORD: [1]}
    assert slow_lines <= 128
    slow_lines = 0
    half = [value if n % 2 else SECRET.encode() for n, value in enumerate(good)]
    assert len(_decode(decoder, half)[0]) == 4_000
    assert slow_lines > 6_000  # where many are odd, the splitting is given up


@pytest.mark.parametrize("few", [0, 1_000])
def test_each_json_value_counts_as_one(monkeypatch, few):
    monkeypatch.setattr(json_lines, "_FEW_LINES", few)
    monkeypatch.setattr(record_formats, "MAX_VALUE_BYTES", 500)
    folded = json.dumps({"user": "u", "item": "i", "timestamp": TIME}, indent=2).encode()
    values = [
        None,
        folded,
        b"",
        GOOD + b"\n" + GOOD,
        b"\n\n",
        GOOD + b"\n",
        b'{"user":"a\nb","item":"i","timestamp":"2017-10-01T03:00:00Z"}',
        GOOD[:-1] + b',"x":"' + b"y" * 500 + b'"}',
        b"\r\n" + folded.replace(b"\n", b"\r\n"),
        GOOD,
    ]
    events, rejected = _decode(_json_decoder(), values)
    assert events == [("u", "i", MICROS)] * 4
    assert rejected == {
        record_formats.NO_VALUE: [1, 3, 5],
        record_formats.BROKEN_RECORD: [4, 7],
        record_formats.TOO_LARGE: [8],
    }
    assert _decode(_json_decoder(), []) == ([], {})
    assert _decode(_json_decoder(), [None])[0] == []
    assert _decode(_json_decoder(), [GOOD, b" \t", GOOD])[1] == {record_formats.NO_VALUE: [2]}


def _avro(schema, user, item, time):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"user": user, "item": item, "timestamp": time})
    return out.getvalue()


PLAIN = avro_schema(("string", "string", TICKS))


def _avro_decoder(framing="none", schema_id=None):
    return record_decoder("avro", EventFields(), json.dumps(PLAIN), framing, schema_id)


@pytest.mark.parametrize(
    "types",
    [
        ("string", "string", TICKS),
        (["null", "string"], ["string", "long"], ["null", TICKS]),
        ("long", "int", TICKS),
        ("bytes", "string", "string"),
    ],
)
def test_avro_values_of_all_types(types):
    schema = avro_schema(types)
    kinds = [kind if isinstance(kind, list) else [kind] for kind in types]
    samples = {"null": None, "string": "ä", "bytes": b"x", "long": 2**40, "int": 7}
    rows = []
    for user in kinds[0]:
        for item in kinds[1]:
            for time in kinds[2]:
                moment = TIME if time == "string" else None if time == "null" else MICROS
                rows.append((samples[user], samples[item], moment))
    rows = rows * 9 + rows[:1]
    values = [_avro(schema, *row) for row in rows]
    decoded = [(user.decode() if isinstance(user, bytes) else user, item, time) for user, item, time in rows]
    unit = None if types[2] == "string" else "us"
    assert _decode(record_decoder("avro", EventFields(), json.dumps(schema)), values) == expected(decoded, unit)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.binary(max_size=60), st.integers(0, 9).map(lambda n: str(n).encode())), max_size=60
    )
)
def test_no_avro_value_changes_how_another_is_read(drawn):
    values = [_avro(PLAIN, v.decode(), "i", MICROS) if v is not None and v.isdigit() else v for v in drawn]
    events = []
    rejected = {}
    for position, value in enumerate(values, 1):  # one by one, and all at once: the same
        one, reasons = _decode(_avro_decoder(), [value])
        events += one
        for reason in reasons:
            rejected.setdefault(reason, []).append(position)
    assert _decode(_avro_decoder(), values) == (events, rejected)


def test_avro_values_that_would_swallow_their_neighbours():
    good = _avro(PLAIN, "victim", "i", MICROS)
    # The first claims an id that runs over its end and so over the next values; a later one is cut off to match.
    long = bytes([2 * 60]) + b"x" * 5
    values = [good, long, good, good, good[:-1], good + b"\0", good + good, good]
    events, rejected = _decode(_avro_decoder(), values)
    assert events == [("victim", "i", MICROS)] * 4
    assert rejected == {record_formats.BROKEN_RECORD: [2, 5, 6, 7]}


def test_an_avro_value_of_very_many_cells_is_broken_and_one_with_a_long_text_is_not():
    """A byte of an array can become 200 bytes of Python's: such values are decoded in bounded parts, each by itself."""
    fields = [*PLAIN["fields"], {"name": "tags", "type": {"type": "array", "items": "long"}}]
    schema = {**PLAIN, "fields": [*fields, {"name": "note", "type": "string"}]}

    def value(user, tags, note):
        out = io.BytesIO()
        event = dict(zip((field["name"] for field in fields), (user, "i", MICROS, [1] * tags), strict=True))
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {**event, "note": "n" * note})
        return out.getvalue()

    values = [value("a", 3, 3), value("b", 1_500_000, 0), value("c", 3, 3_000_000), value("d", 900_000, 0)]
    decoder = record_decoder("avro", EventFields(), json.dumps(schema))
    expected_events = [(user, "i", MICROS) for user in "acd"]
    assert _decode(decoder, values) == (expected_events, {record_formats.BROKEN_RECORD: [2]})


def test_headers_before_avro_values():
    good = _avro(PLAIN, "u", "i", MICROS)
    registered = [b"\0\0\0\0\7" + good, b"\0\0\0\0\x08" + good, b"\1\0\0\0\7" + good, b"\0\0\0", b"", good]
    events, rejected = _decode(_avro_decoder("confluent"), registered)
    assert len(events) == 2
    assert rejected == {record_formats.NO_HEADER: [3, 4, 5, 6]}
    events, rejected = _decode(_avro_decoder("confluent", 7), registered)
    assert len(events) == 1
    assert rejected == {record_formats.NO_HEADER: [3, 4, 5, 6], record_formats.OTHER_SCHEMA: [2]}


def test_what_cannot_be_decoded_is_refused_at_once():
    for arguments, problem in (
        (("xml", EventFields()), "--record-format must be one of json, avro, got 'xml'"),
        (("avro", EventFields()), "need the schema"),
        (("json", EventFields(), json.dumps(PLAIN)), "Use --record-format avro"),
        (("avro", EventFields(), json.dumps(PLAIN), "zip"), "--avro-framing must be one of"),
        (("avro", EventFields(), json.dumps(PLAIN), "none", 7), "needs --avro-framing confluent"),
        (("avro", EventFields(user="who"), json.dumps(PLAIN)), "no field 'who'"),
    ):
        with pytest.raises(ValueError, match=problem):
            record_decoder(*arguments)
    recursive = {"type": "record", "name": "R", "fields": [*PLAIN["fields"], {"name": "more", "type": ["null", "R"]}]}
    with pytest.raises(EventFileError, match="a record that contains itself"):
        record_decoder("avro", EventFields(), json.dumps(recursive))


def test_an_avro_value_of_the_largest_size_is_read_and_a_larger_one_says_so(monkeypatch):
    values = [_avro(PLAIN, user, "i", MICROS) for user in ("u", "uu")]
    monkeypatch.setattr(record_formats, "MAX_VALUE_BYTES", len(values[0]))
    assert _decode(_avro_decoder(), values) == ([("u", "i", MICROS)], {record_formats.TOO_LARGE: [2]})
