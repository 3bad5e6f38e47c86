"""What every worker process needs, loaded once by the fork server before it forks them (`pool.start_fork_server`)."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import warnings
from multiprocessing import forkserver

from dp_transforms.lean_imports import go_without_pandas

go_without_pandas()


@atexit.register
def _leave() -> None:
    """Removes what a command that is killed leaves: the socket of this process, and its folder if nothing else is
    there."""
    socket = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]  # known when it serves
    if socket is not None:
        with contextlib.suppress(OSError):
            os.unlink(socket)
            os.rmdir(os.path.dirname(socket))


# The only other thread is that of jemalloc, in Arrow, which is made for forks. Python 3.12 warns of any.
warnings.simplefilter("ignore", DeprecationWarning)

import pyarrow.parquet  # noqa: E402, F401

import dp_transforms.local.replay  # noqa: E402, F401

gc.collect()
gc.freeze()  # no worker looks through them again, which would copy their pages
