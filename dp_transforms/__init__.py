"""Private shifting heavy hitters: which items many users hold right now, window by window, under user-level privacy.

The one idea is a purse for every user, which pays for looks, for hits, or for both. A look is an item that the user has
in a window; a hit is a published result about it that is charged. Hits are charged by ThresholdMonitorEvolving, a
stateful DoFn (`beam.monitor_heavy_hitters`), and accounted by target charging (TCT); looks, the default, by a price
list (`naming`, docs/purse.md).

Guarantee of everything that `ShiftingHeavyHitters` reports, over the whole run: for neighbouring streams S and S',
which differ in one user with all of its events, and every set R of reports,
``Pr[reports(S) in R] <= e^epsilon Pr[reports(S') in R] + delta``. Proof: docs/guarantee.md.

Public names, loaded when first used:

- `ReleasePlan`: a budget (epsilon, delta) turned into noise, thresholds and prices. Start here.
- `WindowSchedule`: the declared windows of a run. `ItemDomain`: its items, where they are known and public.
- `ShiftingHeavyHitters`: the Beam transform, events in, `WindowReport` out.
- `MonitorStream`: the same for a stream that never ends by itself, a `KafkaTopic` or a `LogFolder`; `StreamClock`: when
  its windows close. `WriteReportStream`: keeps the first answer for a window, in a `ReportFolder`, a `ReportTopic` or a
  `ReportTable`, under a `ReportHeader`.
- `HeavyHitterRows`, `ReadHeavyHitters`, `ReadHeavyHittersOfTopic`: the same declared by plain values, rows out: for
  Beam YAML and Java.
- `WindowReport`, `HeavyHitter`: what is released. `read_report`: a report file as a `Report`. `RejectedEvents`: rows
  that could not be read, for the operator.
- `EventBatch`: events as columns, the fast way in. `ReadEvents`, `EventFields`, `find_log_chunks`: logs as batches.

Map of the package, from what knows nothing to what knows all:

- checks, garbage_collection, html_tables, local_files, remote_files, avro_container: checks of arguments; when Python
  does not look for garbage; tables for notebooks; how local
  files and those in object stores are opened, and how an output appears whole or not at all; Avro files, read with
  limits.
- sql_urls, sql_engines: which databases are known, and how they are connected to.
- discrete_laplace_law: the law of the noise. mechanisms.discrete_laplace draws from it. exponential_power: the law of
  the noise of release mode `names` (docs/purse.md). priced_weights: the weights that its users may
  have, and what each costs.
- event_ids, window_schedule, item_domain, rejected_events: what an id is; the declared windows and items; rows that
  could not be read. operator_counts: what is counted for the operator. noise_key_file: the key in a private file.
- accounting: from a budget to plain numbers. Knows no mechanism.
- mechanisms: keyed randomness, exact noise, release rules. Knows no accounting. `mechanisms.papers` is a library beside
  the pipeline: the papers' mechanisms, each to be used alone.
- monitoring: the streaming core on numpy columns. naming: the same for release mode `names`, in which users pay for
  looks. declared_plan: from plain values to a plan. run_settings: from a plan to what workers need. run_state: what one
  part of a run hands to the next.
- ledger: which runs drew on whose budget, for ever, in a database; refuses what would overspend.
- auditing: what the worst streams attain, exactly and by running the core, against a plan's claim.
- event_files, report_files: logs in, reports out. event_streams, report_streams: the same for what goes on: partitions
  that grow, and how far each one is; sinks that keep the first answer for a window.
- steps: the heavy steps of a replay as pure functions of packed columns. processes: worker processes of this machine
  that run them.
- beam: wires the modules above to Beam.
- web: what a browser shows: a report as a page, the live page.
- engines: starts Flink, Prism and Kafka on this machine, and knows the options of each engine. Knows no privacy.
- cli: the command ``shh``. Of the library (all but cli, engines and web) only beam/ imports Beam.

Beside this folder, and not installed: `pipelines`, what one submits to Beam (replay_log.py, live_stream.py);
`runners`, a page, images and manifests for each engine.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # what typing has, without its 10 ms: `shh` loads this module before it can be stopped in order
if TYPE_CHECKING:
    from typing import Any

    from dp_transforms.accounting.release_plan import ReleasePlan
    from dp_transforms.beam.monitor_stream import MonitorStream
    from dp_transforms.beam.read_events import ReadEvents
    from dp_transforms.beam.read_topic import ReadHeavyHittersOfTopic
    from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
    from dp_transforms.beam.release_rows import HeavyHitterRows, ReadHeavyHitters
    from dp_transforms.beam.write_report_stream import WriteReportStream
    from dp_transforms.event_files import EventFields, find_log_chunks
    from dp_transforms.event_streams.kafka_topic import KafkaTopic
    from dp_transforms.event_streams.log_folder import LogFolder
    from dp_transforms.event_streams.partition_progress import StreamClock
    from dp_transforms.item_domain import ItemDomain
    from dp_transforms.monitoring.event_batch import EventBatch
    from dp_transforms.monitoring.window_report import HeavyHitter, WindowReport
    from dp_transforms.rejected_events import RejectedEvents
    from dp_transforms.report_files import Report, ReportHeader, read_report
    from dp_transforms.report_streams import ReportFolder, ReportTable, ReportTopic
    from dp_transforms.window_schedule import WindowSchedule

_HOME = {
    "EventBatch": "monitoring.event_batch",
    "EventFields": "event_files",
    "HeavyHitter": "monitoring.window_report",
    "HeavyHitterRows": "beam.release_rows",
    "ItemDomain": "item_domain",
    "KafkaTopic": "event_streams.kafka_topic",
    "LogFolder": "event_streams.log_folder",
    "MonitorStream": "beam.monitor_stream",
    "ReadEvents": "beam.read_events",
    "ReadHeavyHitters": "beam.release_rows",
    "ReadHeavyHittersOfTopic": "beam.read_topic",
    "RejectedEvents": "rejected_events",
    "ReleasePlan": "accounting.release_plan",
    "Report": "report_files",
    "ReportFolder": "report_streams",
    "ReportHeader": "report_files",
    "ReportTable": "report_streams",
    "ReportTopic": "report_streams",
    "ShiftingHeavyHitters": "beam.release_heavy_hitters",
    "StreamClock": "event_streams.partition_progress",
    "WindowReport": "monitoring.window_report",
    "WindowSchedule": "window_schedule",
    "WriteReportStream": "beam.write_report_stream",
    "find_log_chunks": "event_files",
    "read_report": "report_files",
}

__all__ = [
    "EventBatch",
    "EventFields",
    "HeavyHitter",
    "HeavyHitterRows",
    "ItemDomain",
    "KafkaTopic",
    "LogFolder",
    "MonitorStream",
    "ReadEvents",
    "ReadHeavyHitters",
    "ReadHeavyHittersOfTopic",
    "RejectedEvents",
    "ReleasePlan",
    "Report",
    "ReportFolder",
    "ReportHeader",
    "ReportTable",
    "ReportTopic",
    "ShiftingHeavyHitters",
    "StreamClock",
    "WindowReport",
    "WindowSchedule",
    "WriteReportStream",
    "find_log_chunks",
    "read_report",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: a plan must not wait for Beam."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
