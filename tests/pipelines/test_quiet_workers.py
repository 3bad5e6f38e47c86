"""At default verbosity a thread that was started in the block prints nothing, not even after it."""

from __future__ import annotations

import logging
import threading

import pytest

from dp_transforms.pipelines.quiet_workers import quiet_workers


def _fails_when(told: threading.Event) -> threading.Thread:
    def fail() -> None:
        told.wait()
        raise RuntimeError("a cell of the log")

    thread = threading.Thread(target=fail, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("level", "is_quiet"), [(logging.CRITICAL, True), (logging.INFO, False)])
def test_a_thread_that_outlives_the_block_is_as_quiet_as_one_within(
    monkeypatch: pytest.MonkeyPatch, level: int, is_quiet: bool
) -> None:
    reported: list[threading.Thread | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: reported.append(failed.thread))
    monkeypatch.setattr(logging.getLogger(), "level", level)
    go_on = threading.Event()
    other = _fails_when(go_on)
    ended = threading.Event()
    ended.set()
    with quiet_workers():
        within = _fails_when(ended)
        within.join()
        outliving = _fails_when(go_on)
    go_on.set()
    other.join()
    outliving.join()
    assert set(reported) == ({other} if is_quiet else {other, within, outliving})
