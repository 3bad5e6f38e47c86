"""What each stage of a replay costs: seconds of CPU and bytes that travel, by the size and the shape of a log.

The steps of the pipeline run one after the other in this process, without an engine: ``python -m benchmarks.stage_costs
LOG WINDOW_SECONDS SHARDS [WORKERS]`` prints one line of JSON. A process of its own for each, so that memory
is its own too. What is loaded for the first block of a log is the start, and does not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import json
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from benchmarks import logs
from dp_transforms.logs import EventFields, find_log_chunks, read_joined, read_log_chunk, spread_chunks
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule, parse_utc
from dp_transforms.stages.read_pairs import PackPairs
from dp_transforms.stages.release_stages import Cuts, stages_of
from dp_transforms.stages.stage import AtOnceStep, Sharding
from tests.helpers.trials import trial_of

CHUNKS, USERS, ITEMS = "chunks of the log", "shards of users", "shards of items"
_SECRET = bytes(range(32))


@dataclasses.dataclass(frozen=True)
class StageCosts:
    """Of mode looks. seconds: of CPU, by stage. tasks: the same of each chunk of the log (reading and hashing), of each
    shard of users and of each shard of items: what an engine can give to different workers. user_bytes, item_bytes:
    that travel to the users' and to the items' shards. messages: of both. result_bytes: of what is named. peak_bytes:
    of this process, which also holds all that travels.
    """

    events: int
    seconds: dict[str, float]
    tasks: dict[str, list[float]]
    user_bytes: int
    item_bytes: int
    messages: int
    result_bytes: int
    peak_bytes: int


class _Clock:
    """Adds up CPU: of stages, and of tasks of steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.tasks: dict[str, list[float]] = defaultdict(list)

    def take(self, stage: str, produce: Iterable) -> list:
        started = time.process_time()
        found = list(produce)
        self.seconds[stage] += time.process_time() - started
        return found

    @contextlib.contextmanager
    def task(self, step: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.tasks[step].append(time.process_time() - started)


def makespan(tasks: dict[str, list[float]], workers: int) -> float:
    """Seconds that so many workers take, if each takes the longest task that is left, and a step begins when the one
    before it has ended."""
    seconds = 0.0
    for of_step in tasks.values():
        busy = [0.0] * workers
        for task in sorted(of_step, reverse=True):
            heapq.heapreplace(busy, busy[0] + task)
        seconds += max(busy)
    return seconds


def measure(log: str, window_seconds: int, shards: int, workers: int = 1) -> StageCosts:
    """A plan for ε = 2 over the days of `logs`. shards: of users and of items. workers: for so many the log is cut and
    joined (`spread_chunks`)."""
    start = parse_utc(logs.START)
    end = start + logs.DAYS * 86_400 // window_seconds * window_seconds
    schedule = WindowSchedule.fixed(start, end, window_seconds)
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=schedule)
    settings = trial_of(plan, stream="events", run_id="scale")
    fields, keys, counts = EventFields(), settings.stream_keys(_SECRET), Counter[str]()
    cuts = Cuts.of(schedule, pays_looks=True, shards=shards)
    packing = PackPairs(schedule, cuts.users, by_item=True)
    stages = stages_of(settings, None, is_replay=True)
    chunks = list(find_log_chunks([log], fields))
    for block in itertools.islice(read_log_chunk(chunks[0], fields), 1):
        list(packing.pack(block.batch, keys, None, Counter()))
    clock = _Clock()
    users: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    events = 0
    for joined in spread_chunks(chunks, fields, workers):
        with clock.task(CHUNKS):
            for block in clock.take("read", read_joined(joined, fields)):
                events += len(block.batch)
                for shard, blob in clock.take("hash and sort", packing.pack(block.batch, keys, None, counts)):
                    users[shard].append(blob)
    items: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    weigh = AtOnceStep(stages.users, cuts.users, cuts.users).start(_SECRET)
    name = AtOnceStep(stages.items, cuts.users, Sharding(cuts.windows.windows_per_slab, 1)).start(_SECRET)
    for group in users.items():
        with clock.task(USERS):
            for shard, blob in clock.take("weigh users", weigh(group, counts)):
                items[shard].append(blob)
    found = []
    for group in items.items():
        with clock.task(ITEMS):
            found += clock.take("name items", name(group, counts))
    return StageCosts(
        events,
        dict(clock.seconds),
        dict(clock.tasks),
        sum(len(blob) for blobs in users.values() for blob in blobs),
        sum(len(blob) for blobs in items.values() for blob in blobs),
        sum(map(len, users.values())) + sum(map(len, items.values())),
        sum(len(blob) for _, blob in found),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


if __name__ == "__main__":
    path, *numbers = sys.argv[1:]
    print(json.dumps(dataclasses.asdict(measure(path, *map(int, numbers)))))
