"""What every worker process needs, loaded once by the fork server before it forks them (`pool.start_fork_server`)."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import warnings

from dp_transforms.lean_imports import go_without_pandas

go_without_pandas()
if folder := os.environ.pop("SHH_FORK_SERVER", None):  # which the command would leave if it is killed
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
# The only other thread is that of jemalloc, in Arrow, which is made for forks. Python 3.12 warns of any.
warnings.simplefilter("ignore", DeprecationWarning)

import pyarrow.parquet  # noqa: E402, F401

import dp_transforms.core.steps  # noqa: E402
import dp_transforms.local.read_contributions  # noqa: E402, F401

gc.collect()
gc.freeze()  # no worker looks through them again, which would copy their pages
