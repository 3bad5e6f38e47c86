"""Whether a replay fits into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dp_transforms.engines.this_machine import free_memory_bytes
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields, LogChunk, estimate_log, most_label_bytes
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.stores.remote_files import is_remote, look_at

# Peak memory of a replay on the local runner, measured by benchmarks/speed.py and rounded up.
_BASE_BYTES = 400_000_000
_BYTES_PER_EVENT = 120
_BYTES_PER_LONG_LABEL_BYTE = 6
_BYTES_PER_DOMAIN_BYTE = 7


def check_memory(
    chunks: Sequence[LogChunk], fields: EventFields, plan: ReleasePlan, domain_file: str | None = None
) -> None:
    """Raises UserError for a log that would not fit into the memory of one process."""
    events, needed = _needed(chunks, fields, plan, domain_file)
    free = free_memory_bytes()
    if needed > free:
        raise UserError(
            f"about {events:,} events{_in_windows(plan)} may need {needed / 1e9:.1f} GB on the local runner and"
            f" {free / 1e9:.1f} GB are free. Replay a part of the range, replay on a cluster (--engine flink), or try"
            " it anyway with --allow-large-log."
        )


def fits(
    memory_bytes: int, chunks: Sequence[LogChunk], fields: EventFields, plan: ReleasePlan, domain_file: str | None
) -> bool:
    """Whether one process can do it in so much memory, also if all labels are as long as they can be."""
    labels = most_label_bytes(chunks) * plan.schedule.windows_per_event * _BYTES_PER_LONG_LABEL_BYTE
    return max(_BASE_BYTES + labels, _needed(chunks, fields, plan, domain_file)[1]) <= memory_bytes


def _needed(
    chunks: Sequence[LogChunk], fields: EventFields, plan: ReleasePlan, domain_file: str | None
) -> tuple[int, float]:
    """About how many events there are, and bytes of memory that they need."""
    log = estimate_log(chunks, fields)
    per_window = log.events * _BYTES_PER_EVENT + log.long_label_bytes * _BYTES_PER_LONG_LABEL_BYTE
    needed = _BASE_BYTES + plan.schedule.windows_per_event * per_window
    return log.events, needed + bytes_of_domain(domain_file)


def bytes_of_domain(domain_file: str | None) -> int:
    """In the memory of a process that has it."""
    return 0 if domain_file is None else _file_size(domain_file) * _BYTES_PER_DOMAIN_BYTE


def _file_size(path: str) -> int:
    if is_remote(path):
        return look_at(path).size
    return os.path.getsize(path) if os.path.isfile(path) else 0


def _in_windows(plan: ReleasePlan) -> str:
    repeats = plan.schedule.windows_per_event
    return f", each in {repeats} sliding windows," if repeats > 1 else ""
