"""Worker processes of this machine, which do the heavy steps of a local replay. Nothing here imports Beam.

    blob_store    where packed columns lie between two steps: in memory that the processes share, or on disk
    errors        PoolError
    messages      objects between two processes, by a socket
    worker        what runs in the fork server and its workers
    pool          ProcessPool: starts the workers, hands them tasks, and says what became of each

A worker knows no file, no key and no plan but by messages of the process that started it; it ends with that process.

Steps of a replay as pure functions of one element, which run anywhere: here, or in a worker process.

    step          what a step is
    pack_pairs    events -> packed pairs (user, item) by window and shard
    read_pairs    chunks of a log -> their packed pairs, and the rows that cannot be read
    reading_step  from a plan to that step: what the process that starts the others does
    groups        packed groups -> packed groups: the heavy steps between the reading and the reports
    all_steps     imports all of them

The DoFns of `beam` run the same functions on clusters. Nothing here imports Beam.
"""

from __future__ import annotations

from dp_transforms.workers.errors import PoolError
from dp_transforms.workers.pool import ProcessPool

__all__ = ["PoolError", "ProcessPool"]
