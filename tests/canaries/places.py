"""The table of docs/security.md that says where raw data may appear, and the tests that measure each of its rows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.canaries.traces import ROOT

VERBOSE = "stderr with `--verbose`"
FIELD_NAMES = "errors that name the fields of a Parquet or Avro file"
LOOKS = "`shh doctor`, and `shh replay LOG` alone: names of fields"
SPILLED = "`shh replay`: what does not fit into `--memory`, in files without a name"
ENGINE_LOGS = "Flink: its own logs, where a library fails"
CHECKPOINTS = "Flink: checkpoints"
BROKER = "Kafka: the disk of the broker"

# Each row, and the test that finds raw data there; other tests find none anywhere else.
MEASURED_BY = {
    VERBOSE: "tests/canaries/test_failures.py::test_the_words_of_a_library_show_with_verbose_alone",
    FIELD_NAMES: "tests/canaries/test_failures.py::test_names_of_fields_are_told",
    LOOKS: "tests/canaries/test_failures.py::test_a_look_at_a_log_tells_names_of_fields_alone",
    SPILLED: "tests/canaries/test_failures.py::test_what_workers_put_on_disk_has_no_name_and_no_user",
    ENGINE_LOGS: "tests/engines/test_canaries.py::test_a_library_that_quotes_cells_on_an_engine",
    CHECKPOINTS: "tests/engines/test_canaries.py::test_a_stream_of_a_folder_on_an_engine",
    BROKER: "tests/engines/test_canaries.py::test_a_topic",
}


def documented() -> dict[str, frozenset[str]]:
    """The kinds of raw data, ``user`` and ``label``, of each row."""
    text = (ROOT / "docs" / "security.md").read_text()
    (section,) = re.findall(r"^## Where raw data may appear$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (.+?) \| (yes|no) \| (yes|no) \|", section, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\|", section, re.MULTILINE)) - 2, "a row that cannot be read"
    return {
        place: frozenset(kind for kind, said in (("user", user), ("label", label)) if said == "yes")
        for place, user, label in rows
    }


def assert_as_documented(row: str, kinds: Iterable[str]) -> None:
    """kinds: what was found in the places of this row."""
    assert documented()[row] == frozenset(kinds), f"docs/security.md says other things about {row!r}"
