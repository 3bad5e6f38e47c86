"""At default verbosity a thread that was started in the block prints nothing, not even after it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from apache_beam.runners.worker import log_handler, sdk_worker

from dp_transforms.cli.pipeline_errors import quiet_workers


@pytest.fixture(autouse=True)
def _prints_as_before() -> Iterator[None]:
    yield
    for module in (sdk_worker, log_handler):
        vars(module).pop("print", None)


def _fails_when(may_fail: threading.Event) -> threading.Thread:
    def fail() -> None:
        may_fail.wait()
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


@pytest.mark.parametrize(("level", "is_quiet"), [(logging.CRITICAL, True), (logging.INFO, False)])
def test_what_a_worker_prints_after_the_block_is_kept_back_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: int, is_quiet: bool
) -> None:
    """Beam's workers print the traceback of what failed; another thread, started later, prints as always."""
    monkeypatch.setattr(logging.getLogger(), "level", level)
    go_on = threading.Event()

    def tell(words: str) -> None:
        go_on.wait()
        eval("print", vars(sdk_worker))(words)  # as a line of that module would

    with quiet_workers():
        outliving = threading.Thread(target=tell, args=["a cell of the log"])
        outliving.start()
    go_on.set()
    outliving.join()
    later = threading.Thread(target=tell, args=["later"])
    later.start()
    later.join()
    assert capsys.readouterr().out == ("later\n" if is_quiet else "a cell of the log\nlater\n")
