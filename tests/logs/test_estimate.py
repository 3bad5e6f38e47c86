"""What the first rows of a log say of all, and whether it has an event inside a range."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms import WindowSchedule
from dp_transforms.logs import EventFields, count_unless_inside, estimate_log, find_log_chunks
from tests.helpers.event_files_oracle import write_csv, write_json, write_parquet

TIME = "2017-10-01T03:00:00Z"


def test_events_and_label_text_of_files_of_every_format_are_estimated(tmp_path):
    rows = [(f"u{n}", "x" * 50 + str(n % 100), TIME) for n in range(5000)]
    write_csv(tmp_path / "a.csv", rows)
    write_csv(tmp_path / "b.csv", rows[:2500])
    write_json(tmp_path / "c.jsonl", rows)
    write_parquet(tmp_path / "d.parquet", rows[:500], [pa.string()] * 3)
    chunks = find_log_chunks([str(tmp_path)], EventFields())
    estimate = estimate_log(chunks, EventFields())
    assert estimate.events == pytest.approx(13_000, rel=0.01)
    beyond_32 = sum(50 + len(str(n)) - 32 for n in range(100))
    assert estimate.long_label_bytes == pytest.approx(130 * beyond_32, rel=0.01)


def test_a_long_label_counts_once_for_each_group_of_windows(tmp_path):
    write_csv(tmp_path / "a.csv", [(f"u{n}", "x" * 1032, TIME) for n in range(3000)])
    chunks = find_log_chunks([str(tmp_path)], EventFields())
    assert estimate_log(chunks, EventFields()).long_label_bytes == pytest.approx(128 * 1000, rel=0.01)


_ESTIMATE = """
import sys
from dp_transforms.logs import EventFields, estimate_log, find_log_chunks
def held():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
few, many = (find_log_chunks([log], EventFields()) for log in sys.argv[1:])
estimate_log(few, EventFields())
before = held()
print(estimate_log(many, EventFields()).long_label_bytes, held() - before)
"""


def test_an_estimate_gives_back_what_its_block_took(tmp_path):
    """In a process of its own. The command makes it, and holds what it kept until its workers end."""
    logs = [tmp_path / "few.parquet", tmp_path / "many.parquet"]
    for rows, log in zip((1, 4_000), logs, strict=True):
        labels = [f"{number:016032d}" for number in range(rows)]
        table = pa.table({"user": labels, "item": labels, "timestamp": pa.array([0] * rows, pa.timestamp("us"))})
        pq.write_table(table, log, compression="none")
    done = subprocess.run([sys.executable, "-c", _ESTIMATE, *logs], capture_output=True, text=True, check=True)
    size, kilobytes = map(int, done.stdout.split())
    assert size == 4_000 * 16_000
    assert kilobytes < 90_000


@pytest.mark.parametrize("place", [None, 0, 1_700, 3_999])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_event_inside_a_range_is_found_wherever_it_is(tmp_path, ending, place):
    """Among rows that cannot be read, in one of two files; and that there is none."""
    fields = EventFields(time_unit="s")
    rows = [("u", "i" if row % 4 else "", 999 if row % 2 else 4600) for row in range(4_000)]
    if place is not None:
        rows[place] = ("u", "i", 1000 + place % 3600)
    for name, some in (("a", rows[:10]), ("b", rows[10:])):
        path = tmp_path / f"{name}.{ending}"
        if ending == "parquet":
            write_parquet(path, some, (pa.string(), pa.string(), pa.int64()), 500)
        else:
            write_csv(path, some)
    found = count_unless_inside(find_log_chunks([str(tmp_path)], fields), fields, WindowSchedule.fixed(1000, 4600, 60))
    assert found == ((3_000, 1_000) if place is None else None)
