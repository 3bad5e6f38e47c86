"""What tests of all commands share."""

import os
import signal
import sys

import pytest


@pytest.fixture
def no_waiting():
    """Ends a test that waits forever, as for the writer of a pipe."""

    def end(number, frame):
        sys.stderr.write("waited too long\n")
        os._exit(99)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
