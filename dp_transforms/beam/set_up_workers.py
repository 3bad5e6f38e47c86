"""Set up: what the steps have on their workers: coders, counters, the noise key, the public items.

To import this module registers the coders: `EventBatch` travels as an Arrow stream, the released types by their
schemas. In another process, and with Beam before 2.74 in the same one, Beam decodes a row as a NamedTuple type that
Beam itself made, with the same fields, and any sequence as a list. So take fields by name or position, and do not test
with isinstance.

The noise key is in a private file, or a fresh draw that never leaves this process. It travels as a `beam.Secret`, which
workers resolve in ``setup()``. The job graph holds a path or a token, never the key.
"""

from __future__ import annotations

import os
import pathlib
import secrets
from collections import Counter

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import DebugOptions, DirectOptions
from apache_beam.runners.runner import PipelineResult
from apache_beam.utils.shared import Shared

from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import MOST_DOMAIN_BYTES, HashesItems, PublicItems, PublicItemsTable, which_keys
from dp_transforms.core.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.fingerprints import MAKE_ONE, read_key_file
from dp_transforms.stores.remote_files import SCHEMES

try:
    from apache_beam.utils.secret import RawSecret
except ImportError:  # Beam before 2.77 has none
    RawSecret = ()

NAMESPACE = "shh.operator"  # of metrics
_IN_PROCESS_RUNNERS = ("FnApiRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner", "TestDirectRunner")
_FRESH_KEYS: dict[str, bytes] = {}
_MOST_BYTES_IN_JOB_GRAPH = 5_000_000
_MAY_BE_PRISM = ("SwitchingDirectRunner", "PrismRunner", "PortableRunner")  # the first is what "DirectRunner" names
_SPLIT_NO_BUNDLE = "prism_disable_sdf_split"


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


def register_coders() -> None:
    """Registers `EventBatchCoder` for batches, and RowCoder for released types and rejected events. Repeatable."""
    beam.coders.registry.register_coder(EventBatch, EventBatchCoder)
    for row_type in (HeavyHitter, WindowReport, RunEnded, RejectedEvents):
        beam.coders.registry.register_coder(row_type, beam.coders.RowCoder)


register_coders()


def operator_counter(name: str) -> Metrics.DelegatingCounter:
    """For the operator alone. Never released, never by user or item (docs/guarantee.md, "What may be published")."""
    return Metrics.counter(NAMESPACE, name)


def operator_gauge(name: str) -> Metrics.DelegatingGauge:
    """The same."""
    return Metrics.gauge(NAMESPACE, name)


class Counters:
    """Operator counters by name."""

    def __init__(self) -> None:
        self._counters: dict[str, Metrics.DelegatingCounter] = {}

    def add(self, counts: Counter[str]) -> None:
        for name, count in counts.items():
            if count:
                if name not in self._counters:
                    self._counters[name] = operator_counter(name)
                self._counters[name].inc(count)


def operator_counts(result: PipelineResult) -> dict[str, int]:
    """All counters of a finished run, without those that were never used."""
    counters = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]
    counts: dict[str, int] = {}
    for counter in counters:
        name = counter.key.metric.name
        counts[name] = counts.get(name, 0) + (counter.result or 0)  # Beam answers None for a 0 of Prism
    return counts


def operator_values(result: PipelineResult) -> dict[str, list[int]]:
    """Counters, and the latest value of a gauge in each step that has it, for `counts_and_gauges`."""
    values = {name: [count] for name, count in operator_counts(result).items()}
    for gauge in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["gauges"]:
        values.setdefault(gauge.key.metric.name, []).append(gauge.result.value)
    return values


class KeyFile(beam.Secret):
    """A key in a file of at least 32 bytes that only its owner can read; each worker needs the file at this path.

    fingerprint: of the key of a run that is taken in parts (`runs.fingerprints.key_fingerprint`); None: any key.
    Every worker reads the file when it is set up, so one that was exchanged meanwhile is refused.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str | None = None) -> None:
        super().__init__()
        self.path = os.fspath(path)
        self.fingerprint = fingerprint

    def get_secret_bytes(self) -> bytes:
        """Raises as `read_key_file` does."""
        return read_key_file(self.path, self.fingerprint)


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


def stays_in_this_process(pipeline: beam.Pipeline) -> bool:
    """Whether all workers of this pipeline are in the process that builds it."""
    mode = pipeline.options.view_as(DirectOptions).direct_running_mode
    return type(pipeline.runner).__name__ in _IN_PROCESS_RUNNERS and mode in (None, "in_memory", "multi_threading")


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
    if not stays_in_this_process(pipeline):
        runner = type(pipeline.runner).__name__
        if runner in _IN_PROCESS_RUNNERS:
            runner += f" in mode {pipeline.options.view_as(DirectOptions).direct_running_mode}"
        raise ValueError(
            f"{runner} runs workers outside this process, which need one noise"
            f" key: give noise_key=PATH, or --noise-key-file. {MAKE_ONE}"
        )
    return FreshKey()


class DomainSource:
    """The public items of a plan. Their table is built once per process and run, by the first step that needs it.

    domain: the path of a file that every worker can read: local, a URL of `dp_transforms.stores.remote_files`, or
        another one that Beam's file systems know. Only the path travels. Or `PublicItems` of at most 5 MB, which are
        pickled into the job graph.
    Raises ValueError unless they are those that the plan was made for; workers check it again.
    """

    def __init__(self, domain: PublicItems | str | os.PathLike[str], plan: Plan) -> None:
        if not isinstance(domain, (PublicItems, str, os.PathLike)):
            raise ValueError(f"public_items must be a path or PublicItems, got a {type(domain).__name__}.")
        if plan.domain is None:
            raise ValueError("the plan has no public items. Make one for this list of items, or give no public_items.")
        if isinstance(domain, PublicItems) and domain.labels.nbytes > _MOST_BYTES_IN_JOB_GRAPH:
            raise ValueError(
                f"public_items that travel in the job graph must have at most {_MOST_BYTES_IN_JOB_GRAPH / 1e6:g} MB,"
                f" got {domain.labels.nbytes / 1e6:.1f} MB. Write it to a file, one item a line, and give its path."
            )
        self._domain = domain if isinstance(domain, PublicItems) else _path_for_workers(os.fspath(domain))
        self._size = plan.domain.size
        self._fingerprint = plan.domain.fingerprint
        self._shared = Shared()
        self._checked_domain()

    def table(self, keys: HashesItems) -> PublicItemsTable:
        """The items by their keyed hashes. keys: the same in all steps of a run.

        One source can serve several runs with different keys (a transform that is applied twice). So the table is kept
        under the keyed hash of a fixed text, which differs from key to key and does not reveal the key.
        """

        def load() -> PublicItemsTable:
            return PublicItemsTable.of_labels(self._checked_domain().labels, keys.hash_items)

        return self._shared.acquire(load, tag=which_keys(keys))  # type: ignore[no-any-return]

    def _checked_domain(self) -> PublicItems:
        domain = self._domain if isinstance(self._domain, PublicItems) else read_domain(self._domain)
        return domain.checked(self._size, self._fingerprint)


def public_items_of_plan(domain: PublicItems | str | os.PathLike[str] | None, plan: Plan) -> DomainSource | None:
    """The public items that workers use; None without. Raises ValueError unless they are the plan's."""
    if domain is None and plan.domain_size:
        raise ValueError(f"the plan has {plan.domain_size:,} public items. Give public_items=PATH.")
    return None if domain is None else DomainSource(domain, plan)


def _path_for_workers(path: str) -> str:
    """Workers may have another current folder."""
    return path if "://" in path else os.path.abspath(path)


def read_domain(path: str) -> PublicItems:
    """`PublicItems.of_text` of a file that any worker may need to fetch. Raises ValueError."""
    if "://" not in path or path.partition("://")[0] in SCHEMES:  # Beam would wait for a pipe
        return PublicItems.read(path)
    try:
        with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            return PublicItems.of_text(file.read(MOST_DOMAIN_BYTES + 1), path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or type(error).__name__}.") from None


class KeyedDoFn(beam.DoFn):
    """Holds the run and, from ``setup()`` on, the keyed functions of the stream as ``self._keys``.

    domain: for steps that need the public items, which are then in ``self._domain``."""

    _run: PlannedRun

    def __init__(self, run: PlannedRun, noise_key: beam.Secret, domain: DomainSource | None = None) -> None:
        self._run = run
        self._noise_key = noise_key
        self._domain_source = domain
        self._domain: PublicItemsTable | None = None

    def setup(self) -> None:
        self._keys = self._run.stream_keys(self._noise_key.get_secret_bytes())
        if self._domain_source is not None:
            self._domain = self._domain_source.table(self._keys)


def display_of(plan: Plan, stream: str) -> dict[str, str | float]:
    """What the pages of an engine show of a run: declared values alone."""
    schedule = plan.schedule
    return {
        "stream": stream,
        "charge": plan.charge_in_words,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "windows": schedule.horizon,
        "window_seconds": schedule.window_seconds,
        "slide_seconds": schedule.slide_seconds,
        "start_seconds": schedule.start_seconds,
    }


def keep_bundles_whole(pipeline: beam.Pipeline) -> None:
    """Tells Prism to split no bundle: else two bundles may have one key at once, and charges in its state are lost
    (docs/engines.md). Other engines do not know the option."""
    if type(pipeline.runner).__name__ in _MAY_BE_PRISM:
        pipeline.options.view_as(DebugOptions).add_experiment(_SPLIT_NO_BUNDLE)
