"""``make demo-flink``: a replay of a log in an S3 store on Flink in two processes, with a worker that is killed on the
way; then the same replay in this process, which gives the same report. It takes about 90 seconds and leaves no process
behind."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

from rich.console import Console

from dp_transforms.cli.main import main
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.cli.replay_request import ReplayOptions, ReplayRequest
from dp_transforms.cli.replay_run import run_replay
from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import read_report_file
from examples.demos.demo import (
    fresh_folder,
    kill_workers,
    make_noise_key,
    print_checks,
    print_command,
    run_demo,
    shh_words,
    started,
)
from examples.engines.engine_process import EngineError, EngineProcess, free_port, is_port_open
from examples.engines.flink import WorkerPool
from examples.engines.flink_cluster import FlinkCluster, are_at_work
from examples.engines.flink_rest import ENDED

_FOLDER = pathlib.Path("demo") / "flink"
_BUCKET = "clicks"
_FILES, _EVENTS, _USERS = 4, 500_000, 50_000  # events: of each file
_RANGE = ("--start", "2026-01-01", "--end", "2026-01-03", "--window", "1h")
_REPORT = "report.avro"
_SECONDS_TO_START = 60.0
_PATIENCE_SECONDS = 600


class Outcome(NamedTuple):
    """code: of the command; None if it did not end. failures: of the job, that Flink knows. windows: with a report,
    named: items in all of them. is_same: whether the report is that of a replay in this process, in every window and
    field."""

    code: int | None
    failures: int
    windows: int
    named: int
    is_same: bool


def demo() -> int:
    """Starts from nothing: what an earlier demo made is removed. Returns the exit code."""
    return run_demo(_demo)


def _demo(console: Console) -> int:
    _FOLDER.parent.mkdir(exist_ok=True)
    fresh_folder(_FOLDER)
    folder = _FOLDER.resolve()
    (folder / "cluster").mkdir()
    with contextlib.ExitStack() as stack:
        console.print("Starting an S3 store: the test server of moto ...")
        _start_store(stack, folder)
        _fill_store(console)
        console.print("Starting Flink: a job manager, a task manager, and a pool of Python workers ...")
        cluster = stack.enter_context(FlinkCluster(folder / "cluster"))
        pool = stack.enter_context(WorkerPool(log_path=folder / "workers.log"))
        make_noise_key(console, _FOLDER / "noise.key")
        return _tell(console, _run(console, cluster, pool))


def _start_store(stack: contextlib.ExitStack, folder: pathlib.Path) -> None:
    """Also sets what boto3 finds it by, in this process and all that it starts."""
    port = free_port()
    store = EngineProcess([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], folder / "s3.log")
    stack.callback(store.stop)
    store.wait_until(lambda: is_port_open(port), _SECONDS_TO_START)
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
        AWS_ACCESS_KEY_ID="demo",
        AWS_SECRET_ACCESS_KEY="demo",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
    )
    os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))


def _fill_store(console: Console) -> None:
    import boto3

    store = boto3.client("s3")
    store.create_bucket(Bucket=_BUCKET)
    for number in range(_FILES):
        path = _FOLDER / f"part-{number}.parquet"
        words = ["simulate", "--events", str(_EVENTS), "--users", str(_USERS), "--days", "2", "--seed", str(number)]
        words += ["--output", str(path)]
        print_command(console, "shh " + " ".join(words))
        with contextlib.redirect_stdout(None):
            main(words)
        store.upload_file(str(path), _BUCKET, f"log/{path.name}")
        path.unlink()
    console.print(f"The log is in the store, and nowhere else: s3://{_BUCKET}/log/, {_FILES * _EVENTS:,} clicks.")


def _run(console: Console, cluster: FlinkCluster, pool: WorkerPool) -> Outcome:
    output = f"s3://{_BUCKET}/{_REPORT}"
    key = _FOLDER / "noise.key"
    plan = str(_FOLDER / "plan.json")
    words = ["plan", *_RANGE, "--epsilon", "2", "--delta", "1e-9", "--output", plan]
    print_command(console, "shh " + " ".join(words))
    main(words)
    lines = (
        ["replay", f"s3://{_BUCKET}/log/", "--plan", plan],
        ["--output", output, "--noise-key-file", str(key)],
        ["--runner=FlinkRunner", f"--flink_master={cluster.address}", "--parallelism=2"],
        ["--environment_type=EXTERNAL", f"--environment_config={pool.address}", "--sdk_worker_parallelism=2"],
    )
    print_command(console, "shh " + " \\\n      ".join(" ".join(words) for words in lines))
    with started(shh_words(*(word for words in lines for word in words))) as shh:
        _kill_workers_at_work(console, cluster, pool, shh)
        with contextlib.suppress(subprocess.TimeoutExpired):
            shh.wait(_PATIENCE_SECONDS)
        code = shh.poll()
    failures = len(cluster.rest.failures(cluster.rest.jobs()[0].job_id))
    if code != 0:
        return Outcome(code, failures, 0, 0, is_same=False)
    show = ["show", output]
    print_command(console, "shh " + " ".join(show))
    main(show)
    console.print("\nThe same replay in this process, from the same store, with the same key and run id ...")
    header, reports = read_report_file(output)
    found = list(reports)
    here = str(_FOLDER / _REPORT)
    _replay_here(header.run_id, read_plan(plan), key, here)
    header_here, reports_here = read_report_file(here)
    is_same = (header_here, list(reports_here)) == (header, found)
    return Outcome(code, failures, len(found), sum(len(report.heavy_hitters) for report in found), is_same)


def _kill_workers_at_work(
    console: Console, cluster: FlinkCluster, pool: WorkerPool, shh: subprocess.Popen[bytes]
) -> None:
    """Once all of them have work."""
    while shh.poll() is None:
        if are_at_work(pool) and any(job.state not in ENDED for job in cluster.rest.jobs()):
            kill_workers(console, pool)
            return
        time.sleep(0.1)


def _replay_here(run_id: str, plan: Plan, key: pathlib.Path, output: str) -> None:
    fields = EventFields()
    logs = (f"s3://{_BUCKET}/log/",)
    request = ReplayRequest(
        ReplayOptions(logs=logs, noise_key_file=str(key)),
        chunks=find_log_chunks(logs, fields),
        fields=fields,
        plan=plan,
        output=output,
        run_id=run_id,
    )
    run_replay(request)


def _tell(console: Console, found: Outcome) -> int:
    checks = (
        (found.code == 0, "The command on Flink has ended, and its report is in the store."),
        (found.windows > 0, f"{found.windows} windows were answered with {found.named} items."),
        (found.failures > 0, f"Flink began the job again {found.failures} times: the workers were killed."),
        (found.is_same, "The report is that of the replay in this process, in every window and field."),
    )
    return print_checks(console, checks)


if __name__ == "__main__":
    try:
        import boto3  # noqa: F401
        import moto  # noqa: F401
    except ImportError as error:
        raise EngineError(f"{error.name} is missing. Install the development tools: make install") from None
    sys.exit(demo())
