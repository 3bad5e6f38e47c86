"""Several streams in one pipeline, run to their end in this process."""

from __future__ import annotations

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.workers import operator_counts
from dp_transforms.logs.streams.partition_progress import StreamClock
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.memory_stream import Arrival
from tests.helpers.small_runs import MICROS, RUN_ID, key_file

CLOCK = StreamClock(allowed_lateness_seconds=20, out_of_order_seconds=0, idle_timeout_seconds=0.2)


def arrivals_of(log, delay_seconds=0):
    return [Arrival(event, event[2] + delay_seconds * MICROS) for event in log]


def spread(arrivals, partitions):
    return [arrivals[number::partitions] for number in range(partitions)]


class Ran:
    """Runs monitors of streams in one pipeline, by name: their reports, ends and rejected rows, and the numbers."""

    def __init__(self, tmp_path, streams, **common):
        pipeline, key = local_pipeline(), key_file(tmp_path)
        seen = {}
        for name, (source, plan, arguments) in streams.items():
            settled = {"clock": CLOCK, "noise_key": key, "run_id": RUN_ID, "driver": "loop", "poll_seconds": 0.05}
            output = pipeline | name >> MonitorStream(source, plan, **{**settled, **common, **arguments})
            seen[name] = [Collected(), Collected(), Collected()]
            for collected, label, found in zip(seen[name], output._fields, output, strict=True):
                _ = found | f"{name} {label}" >> collected.sink()
        result = pipeline.run()
        result.wait_until_finish()
        self.counts = operator_counts(result)
        self.stamps = {name: [stamp.micros for _, stamp in found[0].stamped] for name, found in seen.items()}
        self.reports, self.ended, self.rejected = (
            {name: found[kind].values for name, found in seen.items()} for kind in range(3)
        )
