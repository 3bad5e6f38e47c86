"""State, timers and the secret of a keyed DoFn, held in memory by a test that calls the DoFn itself."""

from __future__ import annotations

import apache_beam as beam

from tests.helpers.small_runs import SECRET


class HeldSecret(beam.Secret):
    """`SECRET`, or another one, without a file."""

    def __init__(self, secret=SECRET):
        self._secret = secret

    def get_secret_bytes(self):
        return self._secret


class Bag:
    """A bag state."""

    def __init__(self):
        self.content = []

    def read(self):
        return iter(list(self.content))

    def add(self, value):
        self.content.append(value)

    def clear(self):
        self.content = []


class CountingBag(Bag):
    """read_entries: how many, over all reads."""

    reads = writes = read_entries = 0

    def read(self):
        self.reads += 1
        self.read_entries += len(self.content)
        return super().read()

    def add(self, value):
        self.writes += 1
        super().add(value)


class Cell:
    """A state that holds one value."""

    def __init__(self):
        self.content = None

    def read(self):
        return self.content

    def write(self, value):
        self.content = value

    def clear(self):
        self.content = None


class Timer:
    """A timer that fires when the test says so. at: the timestamp that it was set to."""

    def __init__(self):
        self.at = None

    def set(self, timestamp):
        self.at = timestamp
