"""The framing of text: lines of any length in blocks of any size, runs of blank lines, members of gzip."""

import array
import gzip
import io
import itertools
import json
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.logs import EventFields, EventFileError, cut_chunks, find_log_chunks, read_log_chunk, text_files
from dp_transforms.logs.rejected_events import RejectedEvents, as_array, compact, pack_rejected, write_rejected_lines
from dp_transforms.logs.text_files import LineBlock
from tests.helpers.event_files_oracle import SECRET, read_all

GOOD = '{"user":"u","item":"i","timestamp":"2017-10-01T03:00:00Z"}\n'
MICROS = 1_506_826_800_000_000
_LIMIT = 40


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(
        st.text("ab \t\r", max_size=8) | st.integers(_LIMIT - 2, 3 * _LIMIT).map(lambda size: "x" * size), max_size=12
    ),
    ends_in_feed=st.booleans(),
    block=st.integers(1, _LIMIT),
)
def test_lines_and_their_numbers_do_not_depend_on_blocks(lines, ends_in_feed, block):
    data = ("\n".join(lines) + "\n" * ends_in_feed).encode()
    filled = []
    too_long = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "MAX_LINE_BYTES", _LIMIT)
        patch.setattr(text_files, "BLOCK_BYTES", block)
        for found in text_files.line_blocks(io.BytesIO(data), first_line=5):
            text = found.filled_text()
            assert not text or text.endswith(b"\n")
            filled += zip(found.numbers().tolist(), text.split(b"\n")[:-1], strict=True)
            too_long += found.too_long
    numbered = list(enumerate((line.encode() for line in lines), 5))
    assert too_long == [number for number, line in numbered if len(line) > _LIMIT]
    assert filled == [(number, line) for number, line in numbered if len(line) <= _LIMIT and line.strip()]


def test_a_block_without_lines():
    for raw in (b"", b"\n", b" \n\r\n\t"):
        assert LineBlock(raw).filled_text() == b""
        assert LineBlock(raw).numbers().tolist() == []


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.csv.gz"])
@pytest.mark.parametrize(("blank", "every"), [(b"\n", None), (b" \r\n", 1 << 22)])
def test_runs_of_blank_lines_take_little_more_than_to_unpack_them(tmp_path, name, blank, every):
    """Against the time that Python's own gunzip takes on this machine, here and now. every: bytes between two lines."""
    line = (GOOD if "json" in name else "u,i,2017-10-01T03:00:00Z\n").encode()
    size, step = 32 << 20, every or 32 << 20
    run = blank * (step // len(blank))
    packer = zlib.compressobj(1, wbits=31)
    begin = b"" if "json" in name else b"user,item,timestamp\n"
    parts = [packer.compress(begin)] + [packer.compress(run + line) for _ in range(size // step)] + [packer.flush()]
    (tmp_path / name).write_bytes(b"".join(parts))
    started = time.process_time()
    with gzip.open(tmp_path / name) as file:
        while file.read(1 << 24):
            pass
    unpacking = time.process_time() - started
    started = time.process_time()
    events, rejected = read_all(str(tmp_path / name))
    reading = time.process_time() - started
    assert (events, rejected) == ([("u", "i", MICROS)] * (size // step), {})
    # Measured: 0.5 to 4 times as long; line by line it was 60 times.
    assert reading < 12 * unpacking + 1


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.csv.gz"])
def test_members_are_joined_and_garbage_behind_them_ends_the_reading(tmp_path, name):
    line = GOOD if "json" in name else "u,i,2017-10-01T03:00:00Z\n"
    text = ("" if "json" in name else "user,item,timestamp\n") + line * 500
    cuts = [0, 7, len(text) // 2, len(text) // 2 + 3, len(text)]
    members = [gzip.compress(text[begin:end].encode()) for begin, end in itertools.pairwise(cuts)]
    path = tmp_path / name
    path.write_bytes(b"".join(members))
    assert read_all(str(path)) == ([("u", "i", MICROS)] * 500, {})
    for tail in (b"garbage" + SECRET.encode(), bytes(512), members[0][:-5], line.encode()):
        path.write_bytes(b"".join([*members, tail]))
        with pytest.raises(EventFileError, match="it is damaged") as caught:
            read_all(str(path))
        assert SECRET not in str(caught.value)


_READ = """
import sys
from dp_transforms.logs import EventFields, find_log_chunks, read_log_chunk
(chunk,) = find_log_chunks([sys.argv[1]], EventFields())
rows = [(block.rows, len(block.batch)) for block in read_log_chunk(chunk, EventFields())]
with open("/proc/self/status") as status:  # what getrusage tells begins with the memory of the parent
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(sum(row for row, _ in rows), sum(good for _, good in rows), peak)
"""


def test_a_line_of_a_quarter_of_a_gigabyte_is_passed_over_in_little_memory(tmp_path):
    """In a process of its own, which must end well: Arrow's own reader of CSV aborted it."""
    line, path, packer = b"u,i,2017-10-01T03:00:00Z\n", tmp_path / "log.csv.gz", zlib.compressobj(1, wbits=31)
    parts = [packer.compress(b"user,item,timestamp\n" + line)]
    parts += [packer.compress(b"x" * (1 << 24)) for _ in range(16)]
    path.write_bytes(b"".join([*parts, packer.compress(b"\n" + line), packer.flush()]))
    done = subprocess.run([sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rows, good, peak_kilobytes = map(int, done.stdout.split())
    assert (rows, good) == (3, 2)
    assert peak_kilobytes < 320_000


@pytest.mark.parametrize(
    ("positions", "kind"),
    [(range(3, 5003), range), (range(1, 20_000, 2), array.array), (range(1, 4), tuple), ([], tuple)],
)
def test_positions_of_many_bad_rows_take_little_memory_and_stay_what_they_are(positions, kind):
    kept = compact(np.array(positions, np.int64))
    assert isinstance(kept, kind)
    assert as_array(kept).tolist() == list(kept) == list(positions)
    written = io.BytesIO()
    write_rejected_lines(written, [pack_rejected(RejectedEvents("log", kept, "broken line"))])
    assert [json.loads(line)["position"] for line in written.getvalue().splitlines()] == list(positions)


def test_a_file_of_bad_rows_alone_is_a_range_for_each_block(tmp_path):
    """Also where it is read in parts, which count from the beginning of the file."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"no json\n" * 1_050_000)
    chunks = cut_chunks(find_log_chunks([str(path)], EventFields()), EventFields(), 2)
    assert len(chunks) == 2
    found = [
        part.positions for chunk in chunks for block in read_log_chunk(chunk, EventFields()) for part in block.rejected
    ]
    assert all(isinstance(positions, range) for positions in found if len(positions) >= 1000)
    assert sum(map(len, found)) == 1_050_000
    assert (found[0][0], found[-1][-1]) == (1, 1_050_000)
