"""Name a stream: counted messages with all pairs of its users -> window reports, in release mode `names`.

What all streams share, whoever says when a window is complete: the clocks of partitions, or a watermark.
"""

from __future__ import annotations

from typing import NamedTuple

import apache_beam as beam

from dp_transforms.beam.find_looks import FindLooksCounted
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.monitor_counted import ENDED, MonitorCounted
from dp_transforms.beam.name_counted import NameCounted
from dp_transforms.beam.release_counted import ReleaseCounted
from dp_transforms.beam.set_up_workers import DomainSource
from dp_transforms.beam.spend_purses import SpendPurses
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.runs.run_part import RunPart


class StreamOfNames(NamedTuple):
    """reports: of `WindowReport`. ended: of `RunEnded`. states: what each step hands over, of `state_messages`."""

    reports: beam.PCollection
    ended: beam.PCollection
    states: tuple[beam.PCollection, ...]


def name_stream(
    messages: beam.PCollection,
    settings: NamingSettings,
    noise_key: beam.Secret,
    shards: int,
    senders: int,
    domain: DomainSource | None,
    part: RunPart | None = None,
) -> StreamOfNames:
    """``((window, shard of users), message)`` -> `WindowReport`, and `RunEnded`.

    Users pay for looks, each at its own pace (docs/purse.md, section 8); and for hits, where the plan says so.

    senders: how many senders each shard of users has in each window. part: of a run that is taken in parts.
    """
    spent = messages | "SpendPurses" >> SpendPurses(settings, noise_key, shards, senders, part)
    if settings.hits_per_user:
        found = spent.messages | "FindLooks" >> FindLooksCounted(settings, noise_key, shards, domain, part)
        monitored = (
            found.messages
            | "GatherWindows" >> GatherCounted(shards)
            | "MonitorHeavyHitters" >> MonitorCounted(settings, noise_key, part)
        )
        return StreamOfNames(monitored.reports, monitored[ENDED], (spent[STATE], found[STATE], monitored[STATE]))
    named = spent.messages | "NameItems" >> NameCounted(settings, noise_key, shards, domain, part)
    released = named.messages | "ReleaseWindows" >> ReleaseCounted(settings, shards, part)
    return StreamOfNames(released.reports, released[ENDED], (spent[STATE], named[STATE]))
