"""Values of records: judged as the same lines in log files are, each by itself."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.logs.streams import kafka_reader
from dp_transforms.logs.streams.kafka_reader import RecordDecoder
from tests.helpers.event_files_oracle import SECRET, read_chunks

TIME = "2017-10-01T03:00:00Z"
MICROS = 1_506_826_800_000_000
GOOD = b'{"user":"u","item":"i","timestamp":"2017-10-01T03:00:00Z"}'
FIRST = 1_000  # the position of the first value


def _decode(decoder, values):
    """Events and rejected positions by reason, counted from 1; checks on the way what always holds."""
    positions = np.arange(FIRST, FIRST + len(values))
    decoded, rows = decoder.decode("topic:0", values, positions)
    rejected = {part.reason: sorted(position - FIRST + 1 for position in part.positions) for part in decoded.rejected}
    assert len(rejected) == len(decoded.rejected)
    assert all(part.source == "topic:0" and SECRET not in part.reason for part in decoded.rejected)
    places = (rows + 1).tolist() + [position for part in rejected.values() for position in part]
    assert sorted(places) == list(range(1, len(values) + 1))
    assert np.all(np.diff(rows) > 0)
    batch = decoded.batch
    events = zip(batch.user.to_pylist(), batch.item.to_pylist(), batch.time_micros.tolist(), strict=True)
    return list(events), rejected


def _decoder():
    return RecordDecoder(EventFields())


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


@given(st.lists(st.lists(st.one_of(st.none(), st.just(GOOD), rows, hostile), max_size=10), min_size=1, max_size=2))
def test_json_values_are_read_as_lines_of_a_file_whatever_was_read_before(tmp_path, polls):
    """A record without a value, or of blanks alone, is reported; such a line is not one."""
    decoder, path = RecordDecoder(EventFields()), tmp_path / "log.jsonl"
    for values in polls:
        path.write_bytes(b"\n".join(value or b"" for value in values))
        events, rejected = read_chunks(find_log_chunks([str(path)], EventFields()), EventFields())
        found, reasons = _decode(decoder, values)
        blank = reasons.pop(kafka_reader.NO_VALUE, [])
        assert blank == [row for row, value in enumerate(values, 1) if not (value or b"").strip(b" \t\r\n")]
        broken = reasons.pop(kafka_reader.BROKEN_RECORD, None)
        assert (found, reasons | ({"broken line": broken} if broken else {})) == (events, rejected)


def test_each_json_value_counts_as_one(monkeypatch):
    monkeypatch.setattr(kafka_reader, "MAX_VALUE_BYTES", 500)
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
    events, rejected = _decode(_decoder(), values)
    assert events == [("u", "i", MICROS)] * 4
    assert rejected == {
        kafka_reader.NO_VALUE: [1, 3, 5],
        kafka_reader.BROKEN_RECORD: [4, 7],
        kafka_reader.TOO_LARGE: [8],
    }
    assert _decode(_decoder(), [GOOD, b" \t", GOOD])[1] == {kafka_reader.NO_VALUE: [2]}
