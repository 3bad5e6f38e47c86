"""What else could be done with a topic, beside `benchmarks.stream_load`.

``python -m benchmarks.stream_peers consume SERVERS TOPIC``: reads it and decodes the JSON to columns, nothing more;
prints the events and seconds. ``... dump SERVERS TOPIC FILE EVENTS``: the first events as JSON lines, for `shh replay`.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator

import pyarrow.json

_AT_ONCE = 50_000


def _values(servers: str, topic: str) -> Iterator[list[bytes]]:
    """All that is in the topic now, in lists."""
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
    while at_end < len(numbers):
        messages = consumer.consume(_AT_ONCE, 0.2)
        values = [message.value() for message in messages if message.error() is None]
        at_end += len(messages) - len(values)
        if values:
            yield values
    consumer.close()


def consume(servers: str, topic: str) -> None:
    begin = time.perf_counter()
    events = 0
    for values in _values(servers, topic):
        events += len(pyarrow.json.read_json(io.BytesIO(b"\n".join(values))))
    print(json.dumps({"events": events, "seconds": time.perf_counter() - begin}))


def dump(servers: str, topic: str, path: str, events: int) -> None:
    with open(path, "wb") as file:
        for values in _values(servers, topic):
            file.write(b"\n".join(values[:events]) + b"\n")
            events -= len(values)
            if events <= 0:
                break


if __name__ == "__main__":
    if sys.argv[1] == "consume":
        consume(*sys.argv[2:4])
    else:
        dump(*sys.argv[2:5], int(sys.argv[5]))
