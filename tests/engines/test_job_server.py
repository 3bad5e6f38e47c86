"""The job server that `make engines` builds: nobody waits for a worker that has gone."""

from __future__ import annotations

import pathlib
import re
import subprocess

from examples.engines.engine_process import engine_file, java
from examples.engines.flink import JOB_SERVER_JAR
from tests.engines import needs

pytestmark = needs("flink")


def test_nobody_waits_for_a_worker_that_has_gone() -> None:
    """Beam's own class does, for ever, once it waits; and the task with it."""
    case = pathlib.Path(__file__).parent / "java" / "SenderCase.java"
    command = [java(), "-Xmx200m", "-XX:MaxDirectMemorySize=96m", "-cp", str(engine_file(JOB_SERVER_JAR)), str(case)]
    done = subprocess.run([*command, "4000000", "3"], capture_output=True, text=True, timeout=120, check=True)
    before, *told, after = done.stdout.splitlines()
    assert before == "before it left: 1, waits"
    sent = re.fullmatch("sent: ([123]), taken: 0, ended", after)[1]
    assert told == ["to the sender: CANCELLED"] * (sent != "3")
