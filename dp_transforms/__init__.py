"""Private shifting heavy hitters: which items many users hold right now, window by window, under user-level privacy.

The one idea is a budget for every user. ThresholdMonitorEvolving, a stateful DoFn for each key
(`beam.threshold_monitor`), tests the items of each window against a threshold and charges a hit to the contribution
counters of the users who hold the item; target charging (TCT) accounts for it. By default the command charges
contributions instead: a user pays for each test of an item that it has in a window, whatever comes of it, by a price
list (`core.user_budgets`; docs/guarantee.md, "Contributions").

Guarantee of everything that `ShiftingHeavyHitters` reports, over the whole run: for neighbouring streams S and S',
which differ in one user with all of its events, and every set R of reports,
``Pr[reports(S) in R] <= e^epsilon Pr[reports(S') in R] + delta``. Proof: docs/guarantee.md.

Public names, loaded when first used:

- `Plan`: a budget (epsilon, delta) turned into noise, thresholds and prices. Start here.
- `WindowSchedule`: the declared windows of a run. `PublicItems`: its items, where they are public.
- `ThresholdMonitorEvolving`: the Beam transform that charges hits: timestamped ``(key, (user, item))`` in,
  ``(key, WindowReport)`` out, a monitor for each key.
- `ShiftingHeavyHitters`: the same without keys, and for plans of contributions; events in, `WindowReport` out.
- `MonitorStream`: the same for a stream that never ends by itself, a `KafkaTopic` or a `LogFolder`.
  `WriteReportStream`: keeps the first answer for a window, in a folder, which `read_report` reads.
- `HeavyHitterRows`: the same declared by plain values, rows in and rows out: for Beam YAML and Java.
- `replay`: a table of events in, a report out, by one call that needs to know nothing of Beam. `read_report`: a
  report file as the same, which any library that takes Arrow reads as a table.
- `WindowReport`: what is released of one window.
- `EventBatch`: events as columns, the fast way in. `ReadEvents`, `EventFields`: the files of a log as batches.

Map of the package. Each folder imports only those above it, and each says in its docstring what is in it; checks,
errors and lean_imports are for all of them.

- accounting: laws of the noise; from a budget to plain numbers.
- stores: where bytes lie: local files, object stores, Kafka.
- plan: what is declared: windows and budget, as a `Plan`.
- core: the algorithm on numpy columns: keyed noise, user budgets and contribution counters, thresholds, names.
- papers: a library that the pipeline does not run: the papers' mechanisms, each to be used alone.
- logs: events in: files, and streams, which are partitions that grow. reports: answers out; a folder that
  keeps the first answer for a window.
- runs: what one part of a run hands to the next; the ledger, which refuses what would overspend.
- audit: compares a plan's claim with what the worst streams attain, computed exactly.
- local: a replay on this machine, without an engine.
- beam: wires the folders above to Beam, and knows the options that a run needs on each runner. views: what people
  look at: tables, pages.
- cli: the command ``shh``. Of all these only beam and cli import Beam.

Beside this folder, and not installed: `pipelines`, what one submits to Beam (replay_log.py, live_stream.py);
`runners`, a page, images and manifests for each engine.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # what typing has, without its 10 ms: `shh` loads this module before it can be stopped in order
if TYPE_CHECKING:
    from typing import Any

    from dp_transforms.beam.monitor_stream import MonitorStream
    from dp_transforms.beam.read_events import ReadEvents
    from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
    from dp_transforms.beam.release_rows import HeavyHitterRows
    from dp_transforms.beam.threshold_monitor import ThresholdMonitorEvolving
    from dp_transforms.beam.write_reports import WriteReportStream
    from dp_transforms.core.event_batch import EventBatch
    from dp_transforms.core.public_items import PublicItems
    from dp_transforms.core.window_report import WindowReport
    from dp_transforms.local.replay_table import replay
    from dp_transforms.logs import EventFields
    from dp_transforms.logs.streams.kafka_topic import KafkaTopic
    from dp_transforms.logs.streams.log_folder import LogFolder
    from dp_transforms.plan.plan import Plan
    from dp_transforms.plan.window_schedule import WindowSchedule
    from dp_transforms.reports import read_report

_HOME = {
    "EventBatch": "core.event_batch",
    "EventFields": "logs",
    "HeavyHitterRows": "beam.release_rows",
    "KafkaTopic": "logs.streams.kafka_topic",
    "LogFolder": "logs.streams.log_folder",
    "MonitorStream": "beam.monitor_stream",
    "ReadEvents": "beam.read_events",
    "Plan": "plan.plan",
    "PublicItems": "core.public_items",
    "ShiftingHeavyHitters": "beam.release_heavy_hitters",
    "ThresholdMonitorEvolving": "beam.threshold_monitor",
    "WindowReport": "core.window_report",
    "WindowSchedule": "plan.window_schedule",
    "WriteReportStream": "beam.write_reports",
    "read_report": "reports",
    "replay": "local.replay_table",
}

__all__ = [
    "EventBatch",
    "EventFields",
    "HeavyHitterRows",
    "KafkaTopic",
    "LogFolder",
    "MonitorStream",
    "Plan",
    "PublicItems",
    "ReadEvents",
    "ShiftingHeavyHitters",
    "ThresholdMonitorEvolving",
    "WindowReport",
    "WindowSchedule",
    "WriteReportStream",
    "read_report",
    "replay",
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
