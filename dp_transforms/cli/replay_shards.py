"""Into how many parts a replay on a cluster cuts users and items: what bounds the memory of a worker."""

from __future__ import annotations

from dp_transforms.cli.replay_engine import LEAST_WORKER_MEGABYTES, USUAL_WORKER_MEGABYTES
from dp_transforms.cli.replay_request import ReplayRequest
from dp_transforms.logs import estimate_log

_EVENTS_PER_SHARD = 1_000_000  # fewer messages than with half a million, and less work (docs/scale.md)
_LEAST_SHARDS, _MOST_SHARDS = 8, 1024
_GROUPS_OF_WINDOWS = 128  # as `monitor.sharding` cuts them
# Measured by `python -m benchmarks replay_on_flink` (docs/scale.md) and rounded up: what a worker holds beside the part
# that it works on (code, a block of the log, what waits to be sent), and what it holds for each event of two parts,
# since a task manager may begin one while another ends.
_FIXED_MEGABYTES = 1200
_BYTES_PER_EVENT = 2 * 165


def shards_for(request: ReplayRequest, parallelism: int, worker_megabytes: int = USUAL_WORKER_MEGABYTES) -> int:
    """So many that a part has at most a million events, or what a worker of this memory can hold if that is less. Of a
    log with more than a billion the parts grow up to that; then their number does.

    In release mode names one part holds all windows of its users; in others windows are cut as well. Results do not
    depend on it.
    """
    schedule = request.plan.schedule
    events = estimate_log(request.chunks, request.fields).events * schedule.windows_per_event
    slabs = 1 if request.plan.release == "names" else min(schedule.horizon, _GROUPS_OF_WINDOWS)
    wanted = max(-(-events // (_EVENTS_PER_SHARD * slabs)), -(-max(_LEAST_SHARDS, 4 * parallelism) // slabs))
    needed = -(-events // (events_that_fit(worker_megabytes) * slabs))
    return max(min(_MOST_SHARDS, wanted), needed)


def events_that_fit(worker_megabytes: int) -> int:
    """Of one part, in a worker of this memory. Raises ValueError."""
    if worker_megabytes < LEAST_WORKER_MEGABYTES:
        raise ValueError(f"a worker needs at least {LEAST_WORKER_MEGABYTES} MB, got {worker_megabytes}.")
    return (worker_megabytes - _FIXED_MEGABYTES) * 1_000_000 // _BYTES_PER_EVENT
