"""Tests on real engines. What this machine lacks is skipped, with a printed reason."""

from __future__ import annotations

from dp_transforms.engines import flink, prism
from dp_transforms.engines.engine_process import EngineError, engine_file, java
from dp_transforms.engines.flink_cluster import FLINK_LIBRARIES
from dp_transforms.engines.kafka_server import KAFKA_LIBRARIES
from tests.engines.language_examples import GO_EXAMPLE, JAVA_EXAMPLE
from tests.helpers.azurite_server import AZURITE, node


def skip_reason(name: str) -> str | None:
    """Why an engine or example ("flink", "go-example", ...) cannot be tested here; None if it can."""
    try:
        if name == "flink":
            java()
            engine_file(flink.JOB_SERVER_JAR, "flink")
            engine_file(FLINK_LIBRARIES, "flink")
        elif name == "kafka":
            java()
            engine_file(KAFKA_LIBRARIES, "kafka")
        elif name == "azurite":
            node()
            engine_file(AZURITE, "azurite")
        elif name == "go-example":
            engine_file(GO_EXAMPLE, "go-example")
        elif name == "java-example":
            java()
            engine_file(JAVA_EXAMPLE, "java-example")
        elif name == "prism":
            prism.prism_binary()
        else:
            raise ValueError(f"no test is on an engine named {name!r}.")
    except EngineError as error:
        return str(error)
    return None
