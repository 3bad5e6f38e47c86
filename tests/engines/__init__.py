"""Tests on real engines. What this machine lacks is skipped, with a printed reason."""

from __future__ import annotations

import pytest

from dp_transforms.errors import UserError
from examples.engines import flink, prism
from examples.engines.engine_process import engine_file, java
from examples.engines.flink_cluster import FLINK_LIBRARIES
from examples.engines.kafka_server import KAFKA_LIBRARIES


def skip_reason(name: str) -> str | None:
    """Why an engine ("flink", "kafka", ...) cannot be tested here; None if it can."""
    try:
        _look_for(name)
    except UserError as error:
        return str(error)
    return None


def _look_for(name: str) -> None:
    """Raises EngineError."""
    if name in ("flink", "kafka"):
        java()
    if name == "prism":
        prism.prism_binary()
    elif name != "job-service":  # it is Beam's own
        for file in _FILES[name]:
            engine_file(file)


def needs(*names: str) -> pytest.MarkDecorator:
    """The mark of a test that is skipped where one of them is missing."""
    reasons = [reason for name in names if (reason := skip_reason(name)) is not None]
    return pytest.mark.skipif(bool(reasons), reason=reasons[0] if reasons else "")


def on(engine: str, *values: object, is_long: bool = False) -> object:
    """A case on this engine, with further values. is_long: it is for `make test-nightly`."""
    return pytest.param(engine, *values, marks=[needs(engine), *([pytest.mark.nightly] if is_long else [])])


_FILES = {"flink": (flink.JOB_SERVER_JAR, FLINK_LIBRARIES), "kafka": (KAFKA_LIBRARIES,)}
