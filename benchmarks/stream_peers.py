"""What else could be done with a topic, beside `benchmarks.stream_load`.

``python -m benchmarks.stream_peers consume SERVERS TOPIC EVENTS``: reads the first events and decodes the JSON to
columns, nothing more; prints how many and the seconds. ``... dump SERVERS TOPIC EVENTS FILE``: writes them as JSON
lines.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator

import pyarrow.json

_AT_ONCE = 50_000


def _values(servers: str, topic: str, events: int) -> Iterator[list[bytes]]:
    """The first ``events`` values, in lists, or all that are there now."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "peer",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    numbers = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    at_end = 0
    while at_end < len(numbers) and events > 0:
        messages = consumer.consume(min(_AT_ONCE, events), 0.2)
        values = [message.value() for message in messages if message.error() is None]
        at_end += len(messages) - len(values)
        events -= len(values)
        if values:
            yield values
    consumer.close()


def consume(servers: str, topic: str, events: int) -> None:
    begin = time.perf_counter()
    rows = sum(
        len(pyarrow.json.read_json(io.BytesIO(b"\n".join(values)))) for values in _values(servers, topic, events)
    )
    print(json.dumps({"events": rows, "seconds": time.perf_counter() - begin}))


def dump(servers: str, topic: str, events: int, path: str) -> None:
    with open(path, "wb") as file:
        for values in _values(servers, topic, events):
            file.write(b"\n".join(values) + b"\n")


if __name__ == "__main__":
    if sys.argv[1] == "consume":
        consume(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        dump(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
