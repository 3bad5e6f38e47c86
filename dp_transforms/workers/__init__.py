"""Worker processes of this machine, which do the heavy steps of a local replay. Nothing here imports Beam.

    blob_store    where packed columns lie between two steps: in memory that the processes share, or on disk
    worker        what runs in the fork server and its workers, and how two processes speak
    pool          ProcessPool: starts the workers, hands them tasks, and says what became of each; Step: what they do,
                  a function of one element that runs anywhere

A worker knows no file, no key and no plan but by messages of the process that started it; it ends with that process.
The DoFns of `beam` run the same steps on clusters (`dp_transforms.stages`).
"""

from __future__ import annotations

from dp_transforms.workers.blob_store import PoolError
from dp_transforms.workers.pool import ProcessPool

__all__ = ["PoolError", "ProcessPool"]
