"""A replay that is stopped, or that cannot print, ends in one line and leaves nothing half done."""

import pytest

from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.errors import UserError


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
