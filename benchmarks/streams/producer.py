"""``python -m benchmarks.streams.producer SERVERS TOPIC PARTITIONS BEGIN RATE:SECONDS ...``: a load of JSON events.

Each event has the time at which it is sent, in milliseconds. All else of it was encoded before, so that most of what a
small machine has is left to what is measured. BEGIN: seconds since 1970 UTC. Prints what it did as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

from dp_transforms.cli.simulate import LogPlan, simulate_log

_POOL_EVENTS = 1_000_000
_POOL_USERS = 300_000
_ITEMS = 50_000
_SEED = 7
_TICK_SECONDS = 0.02
_GENERATIONS = 20  # the pool comes round again with other users, so often


def main(servers: str, topic: str, partitions: int, begin_seconds: float, steps: Sequence[tuple[int, float]]) -> None:
    from confluent_kafka import Producer

    pool = event_pool()
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 20,
            "acks": "1",
            "queue.buffering.max.messages": 2_000_000,
            "log_level": 0,
        }
    )
    if (wait := begin_seconds - time.time()) < 0:
        raise SystemExit(f"the producer was ready {-wait:.1f} s after its begin.")
    time.sleep(wait)
    sent = ticks = 0
    most_behind = 0.0
    due_before = 0.0
    at = begin_seconds
    for rate, seconds in steps:
        until = at + seconds
        while (now := time.time()) < until:
            due = due_before + (now - at) * rate
            count = int(due) - sent
            first = sent % _POOL_EVENTS
            tail = b'-%d","timestamp":%d}' % (sent // _POOL_EVENTS % _GENERATIONS, int(now * 1000))
            events = [{"value": head + tail} for head in pool[first : first + count]]
            producer.produce_batch(topic, events, partition=ticks % partitions)
            producer.poll(0)
            sent, ticks = sent + len(events), ticks + 1
            most_behind = max(most_behind, time.time() - now)
            time.sleep(max(0.0, now + _TICK_SECONDS - time.time()))
        due_before, at = due_before + seconds * rate, until
    left = producer.flush(30)
    times = os.times()
    print(json.dumps({"sent": sent - left, "slowest_tick_seconds": most_behind, "cpu_seconds": times[0] + times[1]}))


def event_pool(events: int = _POOL_EVENTS, users: int = _POOL_USERS) -> list[bytes]:
    """The first part of each event, up to within the user's id; as `shh simulate` draws them, within a day."""
    heads: list[bytes] = []
    for batch in simulate_log(LogPlan(users, _ITEMS, 1, _SEED, events)):
        pairs = zip(batch["item"].to_pylist(), batch["user"].to_pylist(), strict=True)
        heads += [f'{{"item":"{item}","user":"{user}'.encode() for item, user in pairs]
    return heads


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], words[1], int(words[2]), float(words[3]), [
        (int(rate), float(seconds)) for rate, _, seconds in (word.partition(":") for word in words[4:])
    ])  # fmt: skip
