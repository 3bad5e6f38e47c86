"""Name a stream: counted messages with all pairs of its users -> window reports, in release mode `names`.

What all streams share, whoever says when a window is complete: the clocks of partitions, or a watermark.
"""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.beam.find_looks import FindLooksCounted
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.load_domain import DomainSource
from dp_transforms.beam.monitor_counted import MonitorCounted
from dp_transforms.beam.name_counted import NameCounted
from dp_transforms.beam.release_counted import ReleaseCounted
from dp_transforms.beam.spend_purses import SpendPurses
from dp_transforms.naming.naming_settings import NamingSettings


def name_stream(
    messages: beam.PCollection,
    settings: NamingSettings,
    noise_key: beam.Secret,
    shards: int,
    senders: int,
    domain: DomainSource | None,
) -> beam.pvalue.DoOutputsTuple:
    """``((window, shard of users), message)`` -> `WindowReport`, and `RunEnded` tagged `ENDED`.

    Users pay for looks, each at its own pace (docs/purse.md, section 8); and for hits, where the plan says so.

    senders: how many senders each shard of users has in each window of the schedule.
    """
    spent = messages | "SpendPurses" >> SpendPurses(settings, noise_key, shards, senders)
    if settings.hits_per_user:
        return (
            spent
            | "FindLooks" >> FindLooksCounted(settings, noise_key, shards, domain)
            | "GatherWindows" >> GatherCounted(shards)
            | "MonitorHeavyHitters" >> MonitorCounted(settings, noise_key)
        )
    return (
        spent
        | "NameItems" >> NameCounted(settings, noise_key, shards, domain)
        | "ReleaseWindows" >> ReleaseCounted(settings, shards)
    )
