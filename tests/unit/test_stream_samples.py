"""What the load benchmark makes of what it saw: delays, the rate that was kept, who used the CPUs."""

import math
import sys

import pytest

from benchmarks.stream_producer import event_pool
from benchmarks.stream_samples import Sample, cpu_between, delays, median_memory, percentile, role, sustained

MICROS = 1_000_000


def sample(at, worker_cpu, busy, rss=100):
    return Sample(at, {"Python worker": rss}, {"Python worker": worker_cpu}, busy, None)


def test_a_delay_counts_from_the_end_of_the_window_and_its_lateness():
    arrivals = {1000 * MICROS: 1011.5, 1010 * MICROS: 1024.0}
    assert delays(arrivals, 1000, 10, 3, 1) == [0.5, 3.0, math.inf]


def test_the_arrival_of_another_window_is_no_answer():
    assert delays({1005 * MICROS: 1016.0}, 1000, 10, 1, 1) == [math.inf]


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([[1.0, 5.0], [5.0, 5.0]], 2),
        ([[1.0, 1.0], [1.0, 5.1], [1.0, 1.0]], 1),  # what comes after a step that was not kept does not count
        ([[math.inf], [1.0]], 0),
        ([[1.0], []], 1),
    ],
)
def test_a_rate_is_kept_when_no_report_is_late(steps, kept):
    assert sustained(steps, 5.0) == kept


@pytest.mark.parametrize(("share", "value"), [(0.5, 30), (0.99, 60), (0.01, 10), (0.0, 10), (1.0, 60)])
def test_percentile(share, value):
    assert percentile([60, 10, 50, 20, 40, 30], share) == value


def test_cpu_of_others_is_what_is_left():
    samples = [sample(0, 9.0, 90.0), sample(10, 10.0, 100.0), sample(20, 15.0, 118.0), sample(99, 99.0, 999.0)]
    used, others = cpu_between(samples, 5, 25)
    assert used == {"Python worker": 0.5}
    assert others == pytest.approx(1.3)


def test_a_process_that_was_not_there_before_has_no_rate():
    late = Sample(10, {}, {"Python worker": 5.0, "producer": 3.0}, 10.0, None)
    used, _ = cpu_between([sample(0, 1.0, 0.0), late], 0, 10)
    assert used == {"Python worker": 0.4}
    assert cpu_between([late], 0, 10)[0] == {}


def test_memory_within_a_span():
    samples = [sample(at, 0, 0, rss) for at, rss in ((0, 1), (1, 10), (2, 30), (3, 20), (4, 999))]
    assert median_memory(samples, "Python worker", 1, 3) == 20
    assert math.isnan(median_memory(samples, "Kafka", 1, 3))


def test_roles():
    assert role(["java", "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"]) == "task manager"
    assert role(["python", "-m", "benchmarks.stream_producer", "x"]) == "producer"
    assert role(["python", "-m", "benchmarks", "stream_load"]) == "benchmark"
    assert role([sys.executable, "-c", "from apache_beam...sdk_worker import SdkHarness"]) == "Python worker"
    assert role(["vim"]) == "other"


def test_the_producer_adds_generation_and_time_to_what_is_encoded():
    heads = event_pool(events=1000, users=300)
    assert len(heads) == 1000
    assert all(head.startswith(b'{"item":"') and b'","user":"u' in head and not head.endswith(b'"') for head in heads)
