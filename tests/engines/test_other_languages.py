"""Pipelines in Java and Go get from shh, by Beam's expansion service, what many have, on each engine."""

from __future__ import annotations

import pathlib

import psutil
import pytest

from dp_transforms.engines.engine_process import Engine
from dp_transforms.engines.flink import JobServer
from dp_transforms.engines.portable import JobService
from dp_transforms.engines.prism import Prism
from tests.engines import skip_reason
from tests.engines.language_examples import ExpansionService, run_go_example, run_java_example
from tests.helpers.clear_logs import clear_log
from tests.helpers.small_runs import key_file


def listening(pid: int) -> set[str]:
    """The addresses at which a process and its children listen."""
    parent = psutil.Process(pid)
    found = [each for process in (parent, *parent.children(recursive=True)) for each in process.net_connections()]
    return {each.laddr.ip.removeprefix("::ffff:") for each in found if each.status == psutil.CONN_LISTEN}


def skip_without(*names: str) -> None:
    for name in names:
        if (reason := skip_reason(name)) is not None:
            pytest.skip(reason)


def engine_of(name: str, folder: pathlib.Path) -> Engine:
    if name == "job-service":
        return JobService(log_path=folder / "jobs.log")
    skip_without(name)
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


@pytest.mark.parametrize("name", ["job-service", "flink", "prism"])
def test_java_gets_what_many_have(tmp_path: pathlib.Path, name: str) -> None:
    """The servers listen on loopback alone."""
    skip_without("java-example")
    case = Case(tmp_path)
    with ExpansionService(tmp_path / "expansion.log") as service, engine_of(name, tmp_path) as engine:
        run_java_example(
            tmp_path / "java.log",
            f"--visits={tmp_path / 'visits.csv'}",
            f"--heavyItems={tmp_path / 'heavy_items.csv'}",
            f"--expansionService={service.address}",
            f"--plan={tmp_path / 'plan.json'}",
            f"--noiseKey={case.key}",
            "--runner=PortableRunner",
            f"--jobEndpoint={engine.endpoint}",
            "--defaultEnvironmentType=LOOPBACK",
        )
        addresses = listening(service.process.pid) | listening(engine.process.pid)
        assert addresses
        assert addresses <= {"127.0.0.1", "::1"}
    case.check()


@pytest.mark.parametrize("name", ["flink", "job-service"])  # Prism fails: docs/other_languages.md says why
def test_go_gets_what_many_have(tmp_path: pathlib.Path, name: str) -> None:
    skip_without("go-example")
    case = Case(tmp_path)
    with ExpansionService(tmp_path / "expansion.log") as service, engine_of(name, tmp_path) as engine:
        run_go_example(
            tmp_path / "go.log",
            f"--visits={tmp_path / 'visits.csv'}",
            f"--heavy_items={tmp_path / 'heavy_items.csv'}",
            f"--expansion_service={service.address}",
            f"--plan={tmp_path / 'plan.json'}",
            f"--noise_key={case.key}",
            "--runner=universal",
            f"--endpoint={engine.endpoint}",
            "--environment_type=LOOPBACK",
        )
    case.check()
