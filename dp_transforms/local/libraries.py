"""What every worker process needs, loaded once by the fork server before it forks them (`pool.start_fork_server`)."""

from __future__ import annotations

import gc
import warnings

from dp_transforms.lean_imports import go_without_pandas

go_without_pandas()


# The only other thread is that of jemalloc, in Arrow, which is made for forks. Python 3.12 warns of any.
warnings.simplefilter("ignore", DeprecationWarning)

import pyarrow.parquet  # noqa: E402, F401

import dp_transforms.local.replay  # noqa: E402, F401

gc.collect()
gc.freeze()  # no worker looks through them again, which would copy their pages
