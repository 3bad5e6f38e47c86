"""What an engine, a worker or a library says ends in one line of ours, without a word of theirs."""

import contextlib
import logging
import threading

import pytest
from apache_beam.runners.worker import log_handler, sdk_worker

from dp_transforms.cli.pipeline_errors import errors_in_one_line, quiet_workers
from dp_transforms.errors import InputError, LogError, UserError
from dp_transforms.local.pool import faults_of_steps

FORGED = "cannot read 7\nx.EventFileError: CELL OF A USER"
FORGED_WHOLE = """7
CellError: CELL
dp_transforms.x.EventFileError: CELL OF A USER
Traceback (most recent call last):
  File "/dp_transforms/CELL.py", line 7, in CELL
dp_transforms.x.EventFileError: CELL OF A USER"""


def worker_says(kind, message):
    """The text in which an error of a worker arrives."""
    place = '  File "/x/site-packages/dp_transforms/beam/read_events.py", line 80, in process'
    return f"Traceback (most recent call last):\n{place}\n{kind}: {message} [while running 'ReadEvents/ReadChunks']\n"


def told(error, *, in_a_step=False):
    """The line that it becomes."""
    step = faults_of_steps() if in_a_step else contextlib.nullcontext()
    with pytest.raises(UserError) as caught, errors_in_one_line("nothing was published"), step:
        raise error
    assert "\n" not in str(caught.value)
    assert "CELL" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("CELL [while running 'ReadEvents']"), "failed with ValueError"),
        (RuntimeError(worker_says("ValueError", "CELL")), "ValueError at dp_transforms/beam/read_events.py:80"),
        (RuntimeError(worker_says("pyarrow.lib.ArrowInvalid", "CELL")), "read_events.py:80"),
        (KeyError("CELL"), "failed with KeyError"),
        (InputError("label", "is 'CELL' [while running 'ReadEvents']"), "failed with InputError"),
        (InputError("label [while running 'ReadEvents']", "is 'CELL'."), "failed with InputError"),
        (ValueError("bad [while running 'ReadEvents']", "CELL"), "failed with ValueError"),
        (RuntimeError(worker_says("dp_transforms.x.EventFileError", "a.csv: damaged")), "a.csv: damaged"),
        (RuntimeError(worker_says("dp_transforms.x.StreamError", "the topic is gone")), "the topic is gone"),
        (ValueError("the noise key file k is too short"), "the noise key file k is too short"),
    ],
)
def test_what_workers_say_is_told_without_their_words(error, message):
    assert message in str(told(error))


@pytest.mark.parametrize("message", [FORGED, FORGED_WHOLE])
def test_a_message_with_line_breaks_forges_no_error_of_ours(message):
    """A library may quote a cell, and a cell may hold anything."""
    said = f"{worker_says('ValueError', message)}\nDuring handling\n\n{worker_says('x.Y', message)}"
    here, there = told(ValueError(message), in_a_step=True), told(RuntimeError(said))
    for caught in (here, there):
        assert type(caught) is UserError
        assert "failed with ValueError" in str(caught)
    assert "at dp_transforms/beam/read_events.py:80;" in str(there)


def test_what_an_argument_is_in_a_step_is_not_told():
    told(InputError("label", "must be short, got 'CELL'."), in_a_step=True)


def test_an_error_of_ours_is_told_by_the_traceback_that_was_first():
    said = worker_says("dp_transforms.logs.files.EventFileError", "a.csv: damaged")
    caught = told(RuntimeError(f"Error received: {said}\nDuring handling of it, another one:\n\n{said}"))
    assert (type(caught), str(caught)) == (LogError, "a.csv: damaged")


@pytest.mark.parametrize(("level", "is_quiet"), [(logging.CRITICAL, True), (logging.INFO, False)])
def test_a_worker_in_this_process_prints_nothing_unless_that_is_asked_for(capsys, monkeypatch, level, is_quiet):
    """Beam's workers print the traceback of what failed, with cells."""
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: reported.append(failed.thread))
    for module in (sdk_worker, log_handler):
        monkeypatch.setitem(vars(module), "print", print)
    logging.getLogger().setLevel(level)

    def fail():
        eval("print", vars(sdk_worker))("a cell of the log")  # as a line of that module would
        raise RuntimeError("a cell of the log")

    quiet_workers()
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert (not reported) == (not capsys.readouterr().out) == is_quiet
