"""A replay that is stopped, or that cannot print, ends in one line and leaves nothing half done."""

import signal
import subprocess

import pytest

from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.errors import UserError
from tests.helpers.replay_logs import BUDGET
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import python


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_replay_that_is_stopped_leaves_nothing(tmp_path, stop, code):
    made = shh("simulate", "--events", 100_000, "--output", "log.parquet", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    budget = ["--start", "2026-01-01", "--end", "2026-01-05", *BUDGET[4:]]
    words = ["replay", "log.parquet", *budget, "--output", "report.avro", "--dead-letter", "bad.jsonl"]
    process = python("-c", STOPPING.format(words=words, stop=int(stop)), cwd=tmp_path, stderr=subprocess.PIPE)
    _, stderr_text = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in stderr_text
    assert "failed" not in stderr_text
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


# Stops itself as soon as the pipeline has read something, in the middle of a DoFn.
STOPPING = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have switched off for us
from dp_transforms.beam import read_events
from dp_transforms.cli.main import main

advance = read_events.ReplayProgress.advance
def stop_after(*arguments):
    advance(*arguments)
    os.kill(os.getpid(), {stop})
read_events.ReplayProgress.advance = stop_after
main({words})
"""


def worker_says(kind, message):
    """The text in which an error of a worker arrives."""
    place = '  File "/x/site-packages/dp_transforms/beam/read_events.py", line 80, in process'
    return f"Traceback (most recent call last):\n{place}\n{kind}: {message} [while running 'ReadEvents/ReadChunks']\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("secret [while running 'ReadEvents']"), "failed with an error"),
        (RuntimeError(worker_says("ValueError", "secret")), "ValueError at dp_transforms/beam/read_events.py:80"),
        (RuntimeError(worker_says("pyarrow.lib.ArrowInvalid", "secret")), "read_events.py:80"),
        (KeyError("secret"), "failed with KeyError"),
        (RuntimeError(worker_says("dp_transforms.x.EventFileError", "a.csv: damaged")), "a.csv: damaged"),
        (RuntimeError(worker_says("dp_transforms.x.StreamError", "the topic is gone")), "the topic is gone"),
        (ValueError("the noise key file k is too short"), "the noise key file k is too short"),
    ],
)
def test_what_workers_say_is_told_without_their_words(error, message):
    with pytest.raises(UserError) as caught, errors_in_one_line("nothing was published"):
        raise error
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
