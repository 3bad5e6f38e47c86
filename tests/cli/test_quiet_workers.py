"""At default verbosity a thread that was started in the block prints nothing, not even after it."""

import logging
import threading

import pytest
from apache_beam.runners.worker import log_handler, sdk_worker

from dp_transforms.cli.pipeline_errors import quiet_workers


@pytest.fixture(params=[(logging.CRITICAL, True), (logging.INFO, False)], ids=["quiet", "verbose"])
def is_quiet(request):
    """Whether nothing is to be printed, at the level of the log that there is now. All is as before in the end."""
    level, found = request.param
    before = threading.excepthook
    logging.getLogger().setLevel(level)
    yield found
    threading.excepthook = before
    for module in (sdk_worker, log_handler):
        vars(module).pop("print", None)


def _fails_when(may_fail):
    def fail():
        may_fail.wait()
        raise RuntimeError("a cell of the log")

    thread = threading.Thread(target=fail, daemon=True)
    thread.start()
    return thread


def test_a_thread_that_outlives_the_block_is_as_quiet_as_one_within(is_quiet):
    reported = []
    threading.excepthook = lambda failed: reported.append(failed.thread)
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


def test_what_a_worker_prints_after_the_block_is_kept_back_too(capsys, is_quiet):
    """Beam's workers print the traceback of what failed; another thread, started later, prints as always."""
    go_on = threading.Event()

    def tell(words):
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
