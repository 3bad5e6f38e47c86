"""The pipelines of examples/java and examples/go, and the expansion service that they ask."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from dp_transforms.engines.engine_process import Engine, engine_file, free_port, is_port_open, java

JAVA_EXAMPLE = "java-example/lib/java-example.jar"
GO_EXAMPLE = "go-example/heavyitems"
ROOT = pathlib.Path(__file__).parents[2]


class ExpansionService(Engine):
    """Beam's expansion service for the transforms of this package, with a worker for them, on the loopback address."""

    def __init__(self, log_path: pathlib.Path) -> None:
        port = free_port()
        self.address = f"localhost:{port}"
        command = [sys.executable, "-m", "dp_transforms.engines.on_loopback"]
        command += ["apache_beam.runners.portability.expansion_service_main", f"--port={port}"]
        command += ["--fully_qualified_name_glob=dp_transforms.*", "--serve_loopback_worker"]
        command += ["--environment_type=EXTERNAL", f"--environment_config={self.address}"]
        command += ["--pickle_library=cloudpickle"]
        self._start(command, log_path, lambda: is_port_open(port), 120.0, env={"PYTHONPATH": str(ROOT)})


def run_java_example(log_path: pathlib.Path, *words: str) -> None:
    """Runs it to its end. Raises AssertionError with the last lines of its log."""
    classes = engine_file(JAVA_EXAMPLE, "java-example").parent / "*"
    _run([java(), "--add-opens=java.base/java.util=ALL-UNNAMED", "-cp", str(classes), "HeavyItems", *words], log_path)


def run_go_example(log_path: pathlib.Path, *words: str) -> None:
    """The same in Go."""
    _run([str(engine_file(GO_EXAMPLE, "go-example")), *words], log_path)


def _run(command: list[str], log_path: pathlib.Path) -> None:
    with log_path.open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=240, check=False)
    assert done.returncode == 0, log_path.read_text(errors="replace")[-4000:]
