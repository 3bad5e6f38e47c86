"""The command line of ``shh stream``: its options, and which of them need or exclude each other."""

from __future__ import annotations

import dataclasses
import os
from typing import TypeVar

import click

from dp_transforms.cli.options import (
    ADVANCED,
    BUDGET,
    DURATION,
    DURATION_OR_ZERO,
    ENGINE,
    INPUT,
    OUTPUT,
    Rule,
    flag,
    nested,
    opt,
    switch,
)
from dp_transforms.cli.plan_options import PLAN_RULES, PlanOptions
from dp_transforms.cli.shared_options import (
    ACCOUNT_RULES,
    AccountOptions,
    FieldOptions,
    ViewOptions,
    plan_file_option,
)
from dp_transforms.errors import UserError
from dp_transforms.stores.kafka_client import TOPIC, is_topic

R = TypeVar("R")
_PATH = "PATH"  # what a place is that is no topic


def _seen_as_place(place: str | None) -> str:
    """What rules take ``--input`` and ``--output`` for."""
    if place is None:
        return ""
    return "TOPIC" if is_topic(place) else _PATH


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where events come from."""

    input: str = opt(
        INPUT,
        "Read a folder of log files, and those that are moved into it later, or a topic of Kafka from the first record "
        f"that can count, as {TOPIC}; several HOST:PORT with commas.",
        brief="A folder that grows, or a topic of Kafka.",
        required=True,
        metavar="FOLDER|URL",
        seen_as=_seen_as_place,
    )
    kafka_config: str | None = opt(
        INPUT,
        "More settings of the Kafka client, one NAME=VALUE a line, such as security.protocol=SASL_SSL. Every "
        "worker reads the file at this path.",
        metavar="FILE",
    )

    partitions: int | None = opt(
        INPUT,
        "Read the first N partitions of the topic alone: to resume a run after others were added. Default: all.",
        type=click.IntRange(min=1),
        metavar="N",
    )

    @property
    def folder(self) -> str | None:
        return None if is_topic(self.input) else self.input


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClockOptions:
    """What closes windows."""

    clock: str = opt(
        INPUT,
        "What closes windows. arrival: the log's own clock, which no user can change. event: the times in the "
        "events, only for history.",
        brief="arrival (default), or event for history.",
        type=click.Choice(["arrival", "event"]),
        default="arrival",
    )
    producer_times: bool = switch(
        INPUT,
        "With --clock arrival: let the producers of Kafka records set the times of arrival. No producer may be a "
        "user's device. Without this option the broker must set them (message.timestamp.type=LogAppendTime).",
    )
    allowed_lateness: int = opt(
        INPUT, "How long after its end a window still accepts events.", type=DURATION_OR_ZERO, default="1m"
    )
    out_of_order: int = opt(
        INPUT, "By how much the clock of a partition may run backwards.", type=DURATION_OR_ZERO, default="10s"
    )
    idle_timeout: int = opt(
        INPUT, "A partition with nothing new for this long no longer keeps windows open.", type=DURATION, default="1m"
    )
    shown_within: int | None = opt(
        INPUT,
        "After its arrival readers can see a record within this time. A drain waits so long for "
        "what arrived before. Default: 1s of a folder, of a topic --idle-timeout.",
        type=DURATION_OR_ZERO,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Where reports go."""

    output: str = opt(
        OUTPUT,
        f"Where reports go: a folder that every worker has at this path, or a topic of Kafka, as {TOPIC}.",
        brief="Where reports go: folder, topic.",
        required=True,
        metavar="FOLDER|URL",
        seen_as=_seen_as_place,
    )
    output_kafka_config: str | None = opt(
        OUTPUT,
        "Like --kafka-config, for the topic of --output. Default: --kafka-config for the same servers.",
        metavar="FILE",
    )
    html: str | None = opt(
        OUTPUT,
        "Write the page of `shh show --html` anew at each window, with the newest 200 windows, in the place of a file "
        "that is there.",
        brief="A page that is written anew at each window.",
        metavar="FILE.html",
    )
    view: ViewOptions = nested(ViewOptions)
    dead_letter: str | None = opt(
        OUTPUT,
        "Folder for lists of the records that cannot be read (files of mode 0600).",
        brief="For lists of records that cannot be read.",
        metavar="FOLDER",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What runs the pipeline, and how it ends."""

    stop_file: str | None = opt(
        ENGINE,
        "When this file appears, the run is drained: what arrived by then counts, all windows close and the run "
        "ends. Workers look for it: leave it there until the run has ended. Default: beside the folder of "
        "--output; else a temporary file if all workers run on this machine.",
        metavar="FILE",
    )
    once: bool = switch(
        ENGINE,
        "Read what is there now, and end: the run is drained from its first moment on, as by Ctrl-C. What arrived "
        "by then counts and all windows close, also those that are not over. It waits --out-of-order, --shown-within "
        "and 2 seconds: by default 13 s with a folder, and 72 s with a topic. If no event that is there counts, "
        "nothing is published or spent (exit code 4).",
        brief="Read what is there now, and end.",
    )
    shards: int | None = opt(
        ENGINE,
        "Into how many shards users are spread, one for each million in the run. The run keeps its number, and answers "
        "do not depend on it. Default: 4.",
        type=click.IntRange(1, 1024),
        metavar="N",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The command line of ``shh stream``."""

    source: SourceOptions = nested(SourceOptions)
    fields: FieldOptions = nested(FieldOptions)
    plan_file: str | None = plan_file_option()
    plan: PlanOptions = nested(PlanOptions)
    account: AccountOptions = nested(AccountOptions)
    clock: ClockOptions = nested(ClockOptions)
    sink: SinkOptions = nested(SinkOptions)
    stream: str = opt(OUTPUT, "Name of the stream in reports.", metavar="NAME", default="events")
    noise_key_file: str | None = opt(
        BUDGET,
        "The noise key: a secret of at least 32 random bytes, mode 0600, at this path on every worker. Required "
        "with --runner. Else the default is a key that is drawn for this run and forgotten.",
        brief="A secret that all workers share.",
        metavar="FILE",
    )
    run_id: str | None = opt(
        ADVANCED,
        "Name of the run. Default: a fresh one. Not of a new run with --noise-key-file, unless "
        "--ledger knows which names were used; to resume a run, give its own.",
    )
    allow_empty: bool = switch(
        OUTPUT,
        "With --once: publish also if no event that is there counts. Give it where others see whether a run publishes.",
    )
    job: JobOptions = nested(JobOptions)
    verbose: bool = switch(ADVANCED, "Show Beam's log, which may contain cells of the data.")

    def with_absolute_paths(self) -> StreamOptions:
        """A copy: workers have another current folder. Raises UserError for a URL in the place of a path."""
        sink = _absolute(self.sink, "output_kafka_config", "dead_letter")
        if _seen_as_place(sink.output) == _PATH:
            sink = _absolute(sink, "output")
        source = _absolute(self.source, "kafka_config")
        if source.folder is not None:
            source = _absolute(source, "input")
        job = _absolute(self.job, "stop_file")
        return dataclasses.replace(_absolute(self, "noise_key_file"), source=source, sink=sink, job=job)


def _absolute(record: R, *names: str) -> R:
    """A copy, with absolute paths in these fields."""
    changed: dict[str, str] = {}
    for name in names:
        path = getattr(record, name)
        if "://" in (path or ""):
            raise UserError(f"{flag(name)} must be a path, got a URL. Mount what it names, and give the path of that.")
        if path is not None:
            changed[name] = os.path.abspath(path)
    return dataclasses.replace(record, **changed)  # type: ignore[type-var]


STREAM_RULES = (
    *PLAN_RULES,
    Rule("--kafka-config, --producer-times, --partitions", needs="--input TOPIC"),
    Rule("--csv-separator", needs="--input PATH", why="it is for files"),
    Rule("--producer-times", needs="--clock arrival"),
    Rule("--output-kafka-config", needs="--output TOPIC"),
    Rule("--titles, --page-title, --tz", needs="--html", why="they are for the page"),
    *ACCOUNT_RULES,
    Rule("--allow-empty", needs="--once", why="other runs wait for events"),
)
