"""A pipeline in Java asks shh by Beam's expansion service, and gets what a pipeline in Python gets."""

from __future__ import annotations

import pathlib

import psutil
import pytest

from dp_transforms.beam.encode_rows import rows_of_report
from dp_transforms.runners.job_service import JobService
from tests.engines import skip_reason
from tests.engines.java_example import ExpansionService, run_java_example
from tests.helpers.beam_pipelines import batches_source, run_monitor
from tests.helpers.names_plans import small_names_plan
from tests.helpers.small_runs import RUN_ID, batch_of, key_file, random_log, small_plan

REASON = skip_reason("java-example")


def listening(pid: int) -> set[str]:
    """The addresses at which a process and its children listen."""
    parent = psutil.Process(pid)
    found = [each for process in (parent, *parent.children(recursive=True)) for each in process.net_connections()]
    return {each.laddr.ip.removeprefix("::ffff:") for each in found if each.status == psutil.CONN_LISTEN}


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_java_gets_what_python_gets(tmp_path: pathlib.Path) -> None:
    """With one noise key and run id, so each line must be the same. The servers listen on loopback alone."""
    plan = small_names_plan()
    log = [
        (user, item, time // 1000 * 1000) for user, item, time in random_log(small_plan(), 3, 900) if 0 < time < 2**60
    ]
    (tmp_path / "visits.csv").write_text("".join(f"{user},{item},{time // 1000}\n" for user, item, time in log))
    (tmp_path / "plan.json").write_text(plan.to_json())
    key = key_file(tmp_path)
    with (
        ExpansionService(tmp_path / "expansion.log") as service,
        JobService(log_path=tmp_path / "jobs.log") as engine,
    ):
        run_java_example(
            tmp_path / "java.log",
            f"--visits={tmp_path / 'visits.csv'}",
            f"--heavyItems={tmp_path / 'heavy_items.csv'}",
            f"--expansionService={service.address}",
            f"--plan={tmp_path / 'plan.json'}",
            f"--noiseKey={key}",
            f"--runId={RUN_ID}",
            "--runner=PortableRunner",
            f"--jobEndpoint={engine.endpoint}",
            "--defaultEnvironmentType=LOOPBACK",
        )
        addresses = listening(service.process.pid) | listening(engine.process.pid)
        assert addresses
        assert addresses <= {"127.0.0.1", "::1"}
    reports = run_monitor(batches_source([batch_of(log)]), plan, noise_key=key).reports
    rows = [row for report in reports for row in rows_of_report(report)]
    expected = [f"{row.window_start},{row.at_least_users},{row.item}" for row in rows]
    assert sorted((tmp_path / "heavy_items.csv").read_text().splitlines()) == sorted(expected)
    assert len(rows) >= 9
