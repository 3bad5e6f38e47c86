"""Tests on real engines. What this machine lacks is skipped, with a printed reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from dp_transforms.errors import UserError
from examples.engines import flink, prism
from examples.engines.engine_process import engine_file, java
from examples.engines.flink_cluster import FLINK_LIBRARIES
from examples.engines.kafka_server import KAFKA_LIBRARIES

Found = TypeVar("Found")
_FILES = {"flink": (flink.JOB_SERVER_JAR, FLINK_LIBRARIES), "kafka": (KAFKA_LIBRARIES,)}
_PATIENCE_SECONDS = 240  # what is waited for takes some seconds of a machine that has nothing else to do


def skip_reason(name: str) -> str | None:
    """Why an engine ("flink", "kafka", "prism") cannot be tested here; None if it can."""
    try:
        if name == "prism":
            prism.prism_binary()
        else:
            java()
            for file in _FILES[name]:
                engine_file(file)
    except UserError as error:
        return str(error)
    return None


def needs(*names: str) -> pytest.MarkDecorator:
    """The mark of a test that is skipped where one of them is missing."""
    reasons = [reason for name in names if (reason := skip_reason(name)) is not None]
    return pytest.mark.skipif(bool(reasons), reason=reasons[0] if reasons else "")


def on(engine: str, *values: object) -> object:
    """A case on this engine, with further values."""
    return pytest.param(engine, *values, marks=needs(engine))


def wait_for(what: str, look: Callable[[], Found]) -> Found:
    """The first answer that is true. what: for the error of a test that waited in vain."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not in {_PATIENCE_SECONDS} s, but {found}")
        time.sleep(0.1)
    return found
