"""All that a topic of reports has ever held, aborted transactions too, and what may not be in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dp_transforms.core.window_report import WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.reports.topic_records import decode_record
from tests.engines.kafka_server import KafkaServer
from tests.engines.stream_case import plain_reports


class RawRecord(NamedTuple):
    """One record of the topic, whenever it was written."""

    key: bytes
    value: bytes


def raw_records(kafka: KafkaServer, topic: str, *, committed: bool = True) -> list[RawRecord]:
    """Every record from the first to the last. committed: without those of transactions that were given up."""
    return [RawRecord(record.key or b"", record.value) for record in kafka.records(topic, committed=committed)]


def faults(records: Iterable[RawRecord], expected: Sequence[WindowReport] | None, windows: int) -> list[str]:
    """What is wrong with the records of one run that has ended; none if nothing is.

    expected: the reports of a run in which nothing was killed; None where nobody can know them.
    """
    found: list[str] = []
    values: dict[bytes, set[bytes]] = {}
    windows_seen: dict[tuple[str, int], set[bytes]] = {}
    reports: dict[tuple[str, int], WindowReport] = {}
    ends: Counter[RunEnded] = Counter()
    headers: set[str] = set()
    for key, value in records:
        values.setdefault(key, set()).add(value)
        _, record = decode_record(value)
        if isinstance(record, ReportHeader):
            headers.add(record.to_json())
        elif isinstance(record, RunEnded):
            ends[record] += 1
        else:
            window = record.stream, record.window_start
            windows_seen.setdefault(window, set()).add(value)
            reports[window] = record
    found += [
        f"key {key.decode()}: {len(of_key)} different records" for key, of_key in values.items() if len(of_key) > 1
    ]
    found += [f"window {window}: {len(of)} answers" for window, of in windows_seen.items() if len(of) > 1]
    if len(headers) != 1:
        found.append(f"{len(headers)} headers")
    got = plain_reports(list(reports.values()))
    wanted = plain_reports(expected) if expected is not None else got
    if got != wanted:
        found.append(f"{len(got)} reports are not the {len(wanted)} expected ones: {_first_difference(got, wanted)}")
    if sum(ends.values()) != 1 or next(iter(ends))[1:] != (windows, len(got)):
        found.append(f"ends: {dict(ends)}, wanted one: {windows} windows, {len(got)} reports")
    return found


def _first_difference(got: list[tuple], wanted: list[tuple]) -> str:
    missing = [row[1] for row in wanted if row not in got]
    extra = [row[1] for row in got if row not in wanted]
    return f"starts of windows that are missing or other {missing[:5]}, that are there instead {extra[:5]}"


def repeats(records: Iterable[RawRecord]) -> int:
    """How many records are there again."""
    counts: Counter[Any] = Counter(records)
    return sum(count - 1 for count in counts.values())
