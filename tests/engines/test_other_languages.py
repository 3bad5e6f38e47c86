"""Pipelines in Java and Go get from shh, by Beam's expansion service, what many have, on each engine."""

from __future__ import annotations

import pathlib
import re

import pytest

from dp_transforms.engines.engine_process import Engine
from dp_transforms.engines.flink import JobServer
from dp_transforms.engines.prism import Prism
from tests.engines import on, skip_reason
from tests.engines.language_examples import ExpansionService, run_go_example, run_java_example
from tests.engines.listening import listening
from tests.helpers.clear_logs import clear_log
from tests.helpers.job_service import JobService
from tests.helpers.small_runs import key_file


def engine_of(name: str, folder: pathlib.Path) -> Engine:
    if name == "job-service":
        return JobService(log_path=folder / "jobs.log")
    return Prism(log_path=folder / "prism.log") if name == "prism" else JobServer(folder=folder / "flink")


class Case:
    """A log, a plan and a key in a folder, and what many have.

    Each run draws noise of its own. Each item that many have is missed, or told with a size that is off by a quarter,
    and each that one user has is found, with a probability below 1e-5.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        log, plan, self.many = clear_log()
        (folder / "visits.csv").write_text("".join(f"{user},{item},{time // 1000}\n" for user, item, time in log))
        (folder / "plan.json").write_text(plan.to_json())
        self.key = key_file(folder)

    def check(self) -> None:
        lines = [line.split(",") for line in (self.folder / "heavy_items.csv").read_text().splitlines()]
        sizes = {(start, item): int(size) for start, size, item in lines}
        assert sizes.keys() == self.many.keys()
        assert all(0.75 * self.many[place] < size < 1.25 * self.many[place] for place, size in sizes.items())


# By language: its program, how it spells an option of two words, and how it runs on an engine with a job service.
LANGUAGES = {
    "java": (run_java_example, str, ["--runner=PortableRunner", "--jobEndpoint", "--defaultEnvironmentType=LOOPBACK"]),
    "go": (
        run_go_example,
        lambda name: re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name),
        ["--runner=universal", "--endpoint", "--environment_type=LOOPBACK"],
    ),
}


@pytest.mark.parametrize(
    ("engine_name", "language"),
    [
        on("flink", "java"),
        on("job-service", "go"),
        *(on(name, "java", is_long=True) for name in ("job-service", "prism")),
        on("flink", "go", is_long=True),  # on Prism it fails: docs/other_languages.md says why
    ],
)
def test_another_language_gets_what_many_have(tmp_path: pathlib.Path, engine_name: str, language: str) -> None:
    """The servers listen on loopback alone."""
    if (reason := skip_reason(f"{language}-example")) is not None:
        pytest.skip(reason)
    case = Case(tmp_path)
    program, spelled, (runner, endpoint, environment) = LANGUAGES[language]
    with ExpansionService(tmp_path / "expansion.log") as service, engine_of(engine_name, tmp_path) as engine:
        ours = {
            "visits": tmp_path / "visits.csv",
            "heavyItems": tmp_path / "heavy_items.csv",
            "expansionService": service.address,
            "plan": tmp_path / "plan.json",
            "noiseKey": case.key,
        }
        words = [f"--{spelled(name)}={value}" for name, value in ours.items()]
        program(tmp_path / "program.log", *words, runner, f"{endpoint}={engine.endpoint}", environment)
        sockets = listening(service.process.pid) | listening(engine.process.pid)
        assert sockets
        assert all(socket.is_of_loopback for socket in sockets)
    case.check()
