"""Worker processes of this machine, which do the heavy steps of a local replay. Nothing here imports Beam.

    worker        what runs in the fork server and its workers, how two processes speak, and where packed columns lie
                  between two steps: in memory that the processes share, or on disk
    pool          ProcessPool: starts the workers, hands them tasks, and says what became of each; Step: what they do,
                  a function of one element that runs anywhere

A worker knows no file, no key and no plan but by messages of the process that started it; it ends with that process.
The DoFns of `beam` run the same steps on clusters (`dp_transforms.core`).
"""

from __future__ import annotations

from dp_transforms.local.pool import ProcessPool

__all__ = ["ProcessPool"]
