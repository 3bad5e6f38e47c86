"""Workers: what all steps share. How workers get the noise key, how elements travel, and what the operator sees.

The noise key is in a private file, or a fresh draw that never leaves this process. It travels as a `beam.Secret`, which
workers resolve in ``setup()``: the job graph holds a path or a token, never the key.

To import this module registers coders. `EventBatch` travels as an Arrow stream, the released types and rejected events
by their schemas. In another process Beam decodes a row as a NamedTuple type that Beam itself made, with the same
fields, and any sequence as a list. So take fields by name or position, and do not test with isinstance.

Metrics are never released, never by user or item (docs/guarantee.md, "What may be published").
"""

from __future__ import annotations

import os
import pathlib
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.runners.runner import PipelineResult

from dp_transforms.checks import MAKE_A_KEY
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.operator_counts import (
    BUDGET_STATE_BYTES,
    CLOCK_LAG_SECONDS,
    COUNTER_STATE_BYTES,
    FOLLOWED_ITEMS,
)
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.runs.fingerprints import read_key_file

try:
    from apache_beam.utils.secret import RawSecret
except ImportError:  # Beam before 2.77 has none
    RawSecret = ()

_IN_PROCESS_RUNNERS = ("FnApiRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner", "TestDirectRunner")
_FRESH_KEYS: dict[str, bytes] = {}
NAMESPACE = "shh.operator"


# ---------------------------------------------------------------------------------------------------------------------
# The noise key
# ---------------------------------------------------------------------------------------------------------------------


class KeyFile(beam.Secret):
    """A key in a file of at least 32 bytes that only its owner can read; each worker needs the file at this path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = os.fspath(path)

    def get_secret_bytes(self) -> bytes:
        """Raises as `read_key_file` does."""
        return read_key_file(self.path)


class FreshKey(beam.Secret):
    """A 256-bit key from the operating system, kept in the memory of the process that drew it and forgotten with it."""

    def __init__(self) -> None:
        super().__init__()
        self._token = secrets.token_hex(8)
        _FRESH_KEYS[self._token] = secrets.token_bytes(32)

    def get_secret_bytes(self) -> bytes:
        """Raises RuntimeError in any other process."""
        try:
            return _FRESH_KEYS[self._token]
        except KeyError:
            raise RuntimeError(
                "the noise key was drawn in another process, and this worker cannot have it."
                " Give all workers one key: noise_key=PATH, or --noise-key-file."
            ) from None


def resolve_noise_key(noise_key: beam.Secret | str | os.PathLike[str] | None, pipeline: beam.Pipeline) -> beam.Secret:
    """The secret for the DoFns of this pipeline.

    noise_key: a path, any `beam.Secret` that fetches its bytes on the worker, or None for a fresh key, which is allowed
        only where the run stays in this process.

    Raises ValueError for a fresh key elsewhere, and for a key that cannot be used.
    """
    if isinstance(noise_key, RawSecret):
        raise ValueError("a RawSecret would be pickled into the job graph. Use a path to a private file instead.")
    if isinstance(noise_key, beam.Secret):
        return noise_key
    if isinstance(noise_key, (str, pathlib.PurePath)):
        key_file = KeyFile(noise_key)
        key_file.get_secret_bytes()  # complain when the pipeline is built, not on a worker
        return key_file
    if noise_key is not None:
        raise ValueError(f"noise_key must be a path, a beam.Secret or None, got a {type(noise_key).__name__}.")
    runner, mode = type(pipeline.runner).__name__, pipeline.options.view_as(DirectOptions).direct_running_mode
    if runner not in _IN_PROCESS_RUNNERS or mode not in (None, "in_memory", "multi_threading"):
        if runner in _IN_PROCESS_RUNNERS:
            runner += f" in mode {mode}"
        raise ValueError(
            f"{runner} runs workers outside this process, which need one noise"
            f" key: give noise_key=PATH, or --noise-key-file. {MAKE_A_KEY}"
        )
    return FreshKey()


class KeyedDoFn(beam.DoFn):
    """Holds the run and, from ``setup()`` on, the keyed functions of the stream as ``self._keys`` and, for steps that
    leave out all other items, the public ones as ``self._public_items``."""

    def __init__(self, run: PlannedRun, noise_key: beam.Secret, public_items: PublicItemsSource | None = None) -> None:
        self._run, self._noise_key, self._public_items_source = run, noise_key, public_items
        self._public_items: ItemTable | None = None

    def setup(self) -> None:
        self._keys = self._run.stream_keys(self._noise_key.get_secret_bytes())
        if self._public_items_source is not None:
            self._public_items = self._public_items_source.all_items(self._keys)


# ---------------------------------------------------------------------------------------------------------------------
# Coders
# ---------------------------------------------------------------------------------------------------------------------


class EventBatchCoder(beam.coders.Coder):
    """An Arrow IPC stream, opaque to Beam. Equal batches may have different bytes, so a batch is never a key."""

    def encode(self, value: EventBatch) -> bytes:
        return value.to_bytes()

    def decode(self, encoded: bytes) -> EventBatch:
        return EventBatch.from_bytes(encoded)

    def estimate_size(self, value: EventBatch) -> int:
        """For Beam's counters, which would otherwise encode the batch to learn its size."""
        return int(value.user.nbytes + value.item.nbytes + value.time_micros.nbytes)

    def is_deterministic(self) -> bool:
        return False

    def to_type_hint(self) -> type[EventBatch]:
        return EventBatch


beam.coders.registry.register_coder(EventBatch, EventBatchCoder)
for _row_type in (HeavyHitter, WindowReport, RunEnded, RejectedEvents):
    beam.coders.registry.register_coder(_row_type, beam.coders.RowCoder)


# ---------------------------------------------------------------------------------------------------------------------
# Metrics
# ---------------------------------------------------------------------------------------------------------------------

_GAUGES = (CLOCK_LAG_SECONDS, COUNTER_STATE_BYTES, BUDGET_STATE_BYTES, FOLLOWED_ITEMS)
_NUMBER = re.compile(r"_\d+$")  # of a partition


def operator_counter(name: str) -> Metrics.DelegatingCounter:
    return Metrics.counter(NAMESPACE, name)


def operator_gauge(name: str) -> Metrics.DelegatingGauge:
    return Metrics.gauge(NAMESPACE, name)


def add_counts(counts: Counter[str]) -> None:
    """To the counters of these names."""
    for name, count in counts.items():
        if count:
            operator_counter(name).inc(count)


def operator_counts(result: PipelineResult) -> dict[str, int]:
    """All counters of a finished run, without those that were never used."""
    counts: Counter[str] = Counter()
    for counter in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]:
        counts[counter.key.metric.name] += counter.result or 0  # Beam answers None for a 0 of Prism
    return dict(counts)


def operator_values(result: PipelineResult) -> dict[str, list[int]]:
    """Counters, and the latest value of a gauge in each step that has it, for `counts_and_gauges`."""
    values = {name: [count] for name, count in operator_counts(result).items()}
    for gauge in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["gauges"]:
        values.setdefault(gauge.key.metric.name, []).append(gauge.result.value)
    return values


def counts_and_gauges(values: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], dict[str, int]]:
    """From the values of all workers by name: sums of counters, and the largest of each gauge, of all partitions."""
    gauges: dict[str, int] = {}
    counts: dict[str, int] = {}
    for name, parts in values.items():
        gauge = _NUMBER.sub("", name)
        if gauge in _GAUGES:
            gauges[gauge] = max([*parts, gauges.get(gauge, 0)])
        else:
            counts[name] = sum(parts)
    return counts, gauges
