"""Files that nobody meant to write: whatever they hold, they are read or refused, and no row of others is lost."""

import gzip
import io
import json
import pathlib
import zlib

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.logs import EventFields, EventFileError
from tests.helpers.avro_bytes import zigzag
from tests.helpers.event_files_oracle import SECRET, read_all
from tests.helpers.log_files import NAMES, avro_schema
from tests.helpers.shh_process import run_python

MB = 1 << 20
TIME = "2017-10-01T03:00:00Z"
ROWS = [(f"u{SECRET}{row}", f"i{SECRET}{row % 5}", TIME) for row in range(24)]
SCHEMA = avro_schema(("string", "string", "string"))


def _csv(rows):
    return "".join(",".join(row) + "\n" for row in rows).encode()


def _json(rows):
    return "".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in rows).encode()


def _parquet(**options):
    columns = dict(zip(NAMES, zip(*ROWS, strict=True), strict=True))
    pq.write_table(pa.table(columns), sink := io.BytesIO(), row_group_size=10, **options)
    return sink.getvalue()


def _avro(codec):
    records = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
    fastavro.writer(sink := io.BytesIO(), SCHEMA, records, codec=codec, sync_interval=200)
    return sink.getvalue()


SAMPLES = {
    "csv": _csv([NAMES, *ROWS]),
    "jsonl": _json(ROWS),
    "csv.gz": gzip.compress(_csv([NAMES, *ROWS])),
    "null.avro": _avro("null"),
    "deflate.avro": _avro("deflate"),
    "dictionary.parquet": _parquet(compression="none"),
    "plain.parquet": _parquet(use_dictionary=False, compression="none", data_page_version="2.0"),
    "snappy.parquet": _parquet(compression="snappy", write_page_checksum=True, store_schema=False),
}
_PIECES = [
    b"\0",
    b"\xff",
    b'"',
    b"\n",
    b"\r",
    b",",
    b"{",
    b"}",
    b"[",
    b"\\",
    b"\\u0000",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
]
_PIECES += [b"\x1f\x8b\x08", b"NaN", b"1e400", b"9" * 5000, b"[" * 5000, b"Obj\x01", b"PAR1", b" " * 50, b"\x80" * 9]
_PIECES += [zigzag(number) for number in (-1, 1 << 31, 1 << 62, -(1 << 63))]
_PIECES += [number.to_bytes(4, "little") for number in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF)]
PIECES = st.sampled_from(_PIECES) | st.binary(max_size=8)
# Where bytes go, how many are taken away there (None: as many as come), and what comes.
EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.none() | st.integers(0, 40), PIECES), min_size=1, max_size=4)


def edited(data, edits):
    for at, cut, piece in edits:
        begin = at % (len(data) + 1)
        data = data[:begin] + piece + data[begin + (len(piece) if cut is None else cut) :]
    return data


@pytest.mark.parametrize("name", SAMPLES)
@given(edits=EDITS)
def test_a_changed_file_is_read_or_refused_in_a_line_without_a_cell(tmp_path, name, edits):
    """`read_all` checks what holds of all that is read."""
    path = tmp_path / f"log.{name}"
    path.write_bytes(edited(SAMPLES[name], edits))
    said = ""
    try:
        read_all(str(path))
    except EventFileError as error:
        said = str(error)
    before, _, rest = said.partition("its fields are: ")  # of a header that two fields are in
    assert said == "" or said.isprintable()
    assert SECRET not in before + rest.partition(". Name one with")[2]


_HOSTILE = pathlib.Path(__file__).parents[1] / "data" / "hostile_parquet"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("1-340", None),  # a histogram in the footer that contradicts the schema ended the process
        ("1-42", "s"),  # no rows of the 10 that the footer tells were read
        ("1-1342", None),  # 10 rows of 11
        ("1-1426", None),  # 10 rows of 32,767
        ("1-432", None),  # it was accepted, and pyarrow's own reader refuses it
        ("101-2854", None),  # a row group of less than no rows
    ],
)
def test_parquet_that_was_read_wrongly_once_is_refused(tmp_path, name, unit):
    (tmp_path / "log.parquet").write_bytes((_HOSTILE / name).read_bytes())
    with pytest.raises(EventFileError):
        read_all(str(tmp_path / "log.parquet"), EventFields(time_unit=unit))


# Read in a process of its own, with a limit of CPU; it says how many rows it read and how much memory it took.
_READ = """
import resource, sys
from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
chunks = find_log_chunks([sys.argv[1]], EventFields())
rows = sum(block.rows for chunk in chunks for block in read_log_chunk(chunk, EventFields()))
with open("/proc/self/status") as status:  # what getrusage tells begins with the memory of the parent
    print(rows, next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def test_a_bomb_takes_neither_the_memory_nor_the_time_that_it_claims(tmp_path):
    """A line of 128 MB in 125 kB. Blocks of Avro: test_avro.py; row groups of Parquet: test_parquet.py."""
    sample = _csv([NAMES, *ROWS])
    packer = zlib.compressobj(1, wbits=31)
    packed = [packer.compress(sample), *(packer.compress(b"x" * (16 * MB)) for _ in range(8))]
    (tmp_path / "log.csv.gz").write_bytes(b"".join([*packed, packer.compress(b"\n" + sample), packer.flush()]))
    done = run_python("-c", _READ, tmp_path / "log.csv.gz")
    assert (done.returncode, done.stderr) == (0, "")
    rows, peak_kilobytes = map(int, done.stdout.split())
    assert rows == 24 + 1 + 1 + 24
    assert peak_kilobytes < 220_000
