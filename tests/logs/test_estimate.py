"""What the first rows of a log say of all, and whether it has an event inside a range."""

import pyarrow as pa
import pytest

from dp_transforms import WindowSchedule
from dp_transforms.logs import EventFields, count_unless_inside, estimate_events, find_log_chunks
from tests.helpers.event_files_oracle import write_csv, write_json, write_parquet

TIME = "2017-10-01T03:00:00Z"


def test_events_of_files_of_every_format_are_estimated(tmp_path):
    rows = [(f"u{n}", "x" * 50 + str(n % 100), TIME) for n in range(5000)]
    write_csv(tmp_path / "a.csv", rows)
    write_csv(tmp_path / "b.csv", rows[:2500])
    write_json(tmp_path / "c.jsonl", rows)
    write_parquet(tmp_path / "d.parquet", rows[:500], [pa.string()] * 3)
    chunks = find_log_chunks([str(tmp_path)], EventFields())
    assert estimate_events(chunks, EventFields()) == pytest.approx(13_000, rel=0.01)


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
