"""A replay by worker processes publishes what one process publishes, byte by byte, or nothing."""

import dataclasses
import functools
import gzip
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms import Plan
from dp_transforms.cli import home_workers, replay_run
from dp_transforms.cli.home_workers import LIBRARIES, read_ahead
from dp_transforms.cli.options import LogError
from dp_transforms.cli.replay_run import run_replay
from dp_transforms.errors import UserError
from dp_transforms.local import ProcessPool
from dp_transforms.local.worker import BlobStore, make_files
from dp_transforms.logs import EventFields, find_log_chunks
from tests.helpers.crowded_logs import RANGE, SCHEDULE, replay_request, write_crowded_log
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import run_python
from tests.helpers.small_runs import key_file

ALL_IN_MEMORY, ALL_ON_DISK = 1 << 40, 0
BUDGET = (*RANGE, "--epsilon", "2", "--delta", "1e-6")
pool_of = functools.partial(ProcessPool, libraries=LIBRARIES)


@pytest.fixture
def request_of(tmp_path):
    log = write_crowded_log(tmp_path / "log", 40_000, 600)
    (tmp_path / "log" / "bad.jsonl").write_text(
        '{"user": "u1", "item": "i1", "timestamp": "2026-01-01T00:00:01Z"}\n' * 3 + "no row\n" * 5
    )
    key = key_file(tmp_path)

    def make(name, plan, **changes):
        words = {"key_path": key, "dead_letter": str(tmp_path / f"{name}.bad"), **changes}
        return replay_request(log, plan, tmp_path / name, **words)

    return make


def replayed(request, pool):
    """The report, the dead letter, and what the operator is told of the rows."""
    if pool is not None:
        read_ahead(pool, request)
    summary = run_replay(request, pool=pool)
    assert request.options.dead_letter is not None
    bad = pathlib.Path(request.options.dead_letter).read_bytes()
    return pathlib.Path(request.output).read_bytes(), bad, dataclasses.replace(summary, seconds=0)


PLANS = {
    "looks": lambda: looks_plan_of(SCHEDULE, most_ids=5000),
    "hits-with-counts": lambda: Plan.for_hits(epsilon=6, delta=1e-3, schedule=SCHEDULE, counts=True),
}


@pytest.mark.parametrize(
    ("kind", "processes", "memory", "shards"), [("looks", 3, 20_000, 5), ("hits-with-counts", 1, ALL_ON_DISK, None)]
)
def test_processes_memory_and_shards_change_no_byte(kind, processes, memory, shards, request_of, tmp_path):
    """Where not all that lies between two steps is kept in memory; where it is: tests/conformance."""
    plan = PLANS[kind]()
    expected = replayed(request_of("here.jsonl", plan), None)
    with pool_of(processes, memory) as pool:
        found = replayed(request_of("there.jsonl", plan, shards=shards), pool)
        if kind == "looks":  # windows of the other are cut into small pieces, which travel themselves
            assert pool.spilled_bytes
            assert pool.stored_bytes == 0, "what was used is given back"
    assert b"i1" in expected[0]
    assert expected[1].count(b"\n") == 5
    assert (found[0], found[1].replace(b"there", b"here")) == expected[:2]
    assert found[2] == expected[2]


def fork_server():
    """Of the only pool of this process."""
    running = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    (found,) = [each for each in running if "dp_transforms.local.worker" in each.cmdline()]
    return found


def workers_of(server):
    """When both are there."""
    for _ in range(3000):
        workers = server.children()
        if len(workers) == 2:
            return workers
        time.sleep(0.01)
    raise AssertionError("the workers have not started")


def test_a_killed_worker_fails_the_run_in_one_line(request_of, tmp_path):
    request = request_of("report.jsonl", PLANS["looks"]())
    with pool_of(2, ALL_IN_MEMORY) as pool:
        read_ahead(pool, request)
        workers_of(fork_server())[0].kill()
        said = "a worker process was ended by signal 9, perhaps for lack of memory; nothing was published"
        with pytest.raises(UserError, match=said):
            run_replay(request, pool=pool)
    assert not pathlib.Path(request.output).exists()
    assert not [path for path in tmp_path.iterdir() if "draft" in path.name or path.name.startswith(".")]


def test_a_killed_fork_server_fails_the_run_in_one_line(request_of):
    """Before it has forked: the workers do not come."""
    request = request_of("report.jsonl", PLANS["looks"]())
    with pool_of(2, ALL_IN_MEMORY) as pool:
        fork_server().kill()
        read_ahead(pool, request)
        with pytest.raises(UserError, match=r"a worker process ended; nothing was published\. Give the command again"):
            run_replay(request, pool=pool)
    assert not pathlib.Path(request.output).exists()


def test_a_task_puts_no_more_into_memory_than_there_is_room_for(request_of, tmp_path):
    """A packed log is read by one task, whatever it unpacks to: here 16 MB of labels from some 40 kB."""
    path = tmp_path / "long.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for number in range(1_000):
            file.write(f'{{"user":"u","item":"{number:016384d}","timestamp":"2026-01-01T00:00:01Z"}}\n')
    request = dataclasses.replace(
        request_of("report.jsonl", PLANS["looks"]()), chunks=find_log_chunks([str(path)], EventFields())
    )
    most = 0
    with pool_of(1, 2_000_000) as pool:
        note = pool._note_stored

        def noted(outputs):
            nonlocal most
            note(outputs)
            most = max(most, pool.stored_bytes)

        pool._note_stored = noted
        replayed(request, pool)
        assert most <= 2_000_000
        assert pool.spilled_bytes > 12_000_000


@pytest.mark.parametrize("size", [5_000, 3 << 20])
def test_what_is_stored_is_read_again_until_it_is_given_back(size):
    store = BlobStore([make_files(), make_files()], own=1)
    for to_disk in (False, True):
        blobs = [os.urandom(size) for _ in range(3)]
        handles = [store.put(blob, to_disk=to_disk) for blob in blobs]
        assert [bytes(store.get(handle)) for handle in handles] == blobs
        store.free(handles[1])
        assert [bytes(store.get(handle)) for handle in (handles[0], handles[2])] == [blobs[0], blobs[2]]
    store.close()


def test_a_full_disk_fails_the_run_in_one_line(request_of):
    """The same for what is kept in memory: files may have 20 kB."""
    folder = pathlib.Path(request_of("report.jsonl", PLANS["looks"]()).output).parent
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    (folder / "plan.json").write_text(PLANS["looks"]().to_json())
    words = ["replay", "log", "--plan", "plan.json", "--output", "report.jsonl", "--processes", "2"]
    ended = run_python("-c", limit + STARTED, *words, "--memory", "1MB", cwd=folder)
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert re.fullmatch(r"shh: what lies between two steps cannot be stored in \S+ \(TMPDIR\): .*; nothing was.*", said)
    assert not (folder / "report.jsonl").exists()


def test_no_process_of_a_command_loads_pandas_where_it_is_installed(request_of, tmp_path):
    """Though pyarrow asks for it with the first array, and Beam on import."""
    request_of("report.jsonl", PLANS["looks"]())
    (tmp_path / "plan.json").write_text(PLANS["looks"]().to_json())
    installed = tmp_path / "installed" / "pandas"
    installed.mkdir(parents=True)
    loaded = tmp_path / "loaded"
    (installed / "__init__.py").write_text(f"open({str(loaded)!r}, 'w').close()\nraise ImportError\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed.parent), *sys.path])}
    run = functools.partial(subprocess.run, cwd=tmp_path, env=environment, check=True, capture_output=True)
    words = ["replay", "log", "--plan", "plan.json", "--output", "report.jsonl", "--processes", "2"]
    run([sys.executable, "-m", "dp_transforms.cli.main", *words])
    assert not loaded.exists()
    run([sys.executable, "-c", "import pyarrow; pyarrow.array(['a'])"])
    assert loaded.exists(), "pyarrow loads what stands there"


def test_a_damaged_file_gives_the_same_line(request_of, tmp_path):
    path = tmp_path / "log" / "part-1.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 200] = bytes(200)
    path.write_bytes(data)
    request = request_of("report.jsonl", PLANS["looks"]())
    with pytest.raises(LogError, match="it is damaged") as here:
        replayed(request, None)
    with pool_of(2, ALL_IN_MEMORY) as pool, pytest.raises(LogError) as there:
        replayed(request, pool)
    assert str(here.value).startswith(str(path))
    assert str(there.value) == str(here.value)
    assert not pathlib.Path(request.output).exists()


def test_a_log_that_is_written_to_after_it_was_read_is_refused_too(request_of, tmp_path, monkeypatch):
    """Nothing of it is published, nor the list of rows that cannot be read."""
    request = request_of("report.jsonl", PLANS["looks"]())

    run_to_end = replay_run.run_to_end

    def run_and_write(pipeline):
        result = run_to_end(pipeline)
        with (tmp_path / "log" / "bad.jsonl").open("a") as file:
            file.write("one more\n")
        return result

    monkeypatch.setattr(replay_run, "run_to_end", run_and_write)
    with pytest.raises(LogError, match=r"bad\.jsonl: it was changed while it was read"):
        run_replay(request)
    assert {path.name for path in tmp_path.iterdir()} == {"log", "noise.key"}


def test_an_error_of_a_library_in_a_worker_shows_no_word_of_it(request_of):
    request = request_of("report.jsonl", PLANS["looks"]())
    with pool_of(1, ALL_IN_MEMORY) as pool:
        pool.use_key(b"short")
        with pytest.raises(
            UserError, match=r"failed with ValueError at dp_transforms/.*nothing was published"
        ) as error:
            run_replay(request, pool=pool)
    assert "32 bytes" not in str(error.value)


def test_the_key_is_in_no_command_line_and_in_no_environment(request_of, tmp_path):
    request = request_of("report.jsonl", PLANS["looks"]())
    secret = pathlib.Path(str(request.options.noise_key_file)).read_bytes()
    with pool_of(2, ALL_ON_DISK) as pool:
        read_ahead(pool, request)
        seen = b""
        for process in (fork_server(), *workers_of(fork_server())):
            folder = pathlib.Path(f"/proc/{process.pid}")
            seen += (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        assert b"dp_transforms.local.worker" in seen
        replayed(request, pool)
        stored = b"".join(os.pread(of_worker.disk, 1 << 24, 0) for of_worker in pool._files)
    assert len(stored) > 50_000
    for form in (secret, secret.hex().encode()):
        assert form not in seen + stored


STARTED = "import os, sys; from dp_transforms.cli.main import main; main(sys.argv[1:])"


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_workers_end_with_a_replay_that_is_stopped(tmp_path, stop, code):
    write_crowded_log(tmp_path / "log", 200_000, 10_000)
    words = ["replay", "log", *BUDGET, "--processes", "2", "--memory", "1MB", "--output", "report.avro"]
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {STARTED}"
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    workers = []
    for _ in range(1000):
        fork_servers = psutil.Process(process.pid).children()
        workers = fork_servers[0].children() if fork_servers else []
        if len(workers) == 2 and all(worker.cpu_times().user > 0.02 for worker in workers):
            break
        time.sleep(0.01)
    assert len(workers) == 2
    workers += fork_servers
    process.send_signal(stop)
    _, stderr_text = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Traceback" not in stderr_text
    _, alive = psutil.wait_procs(workers, timeout=3)
    assert not alive
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "temporary"]
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("label", "other", "shards"), [("x" * 4_000, "", 16), ("x", "x" * 4_000, 8)], ids=["labels", "another column"]
)
def test_long_labels_are_cut_into_more_shards(tmp_path, monkeypatch, label, other, shards):
    """A worker has all labels of a shard at once; what a field has that is not read costs nothing."""
    monkeypatch.setattr(home_workers, "_LABEL_BYTES_PER_SHARD", 500_000)
    path, rows = tmp_path / "log.parquet", range(2_000)
    columns = {name: [f"{text}{row}" for row in rows] for name, text in (("item", label), ("other", other))}
    pq.write_table(pa.table({"user": ["u"] * 2_000, "timestamp": pa.array(rows, pa.timestamp("s")), **columns}), path)
    chunks = find_log_chunks([str(path)], EventFields())
    found = home_workers.shards_of_log(chunks, SCHEDULE, EventFields(), pays_looks=True)
    assert found == pytest.approx(shards, abs=1)


def test_the_command_uses_processes_by_itself_for_a_log_that_is_not_small(tmp_path, monkeypatch):
    write_crowded_log(tmp_path / "log", 3000, 200)
    (tmp_path / "log" / "bad.jsonl").write_text("no row\n")
    (tmp_path / "plan.json").write_text(PLANS["looks"]().to_json())
    made = []

    class Watched(ProcessPool):
        def __init__(self, processes, memory_bytes, **options):
            made.append((processes, memory_bytes))
            super().__init__(processes, memory_bytes, **options)

    monkeypatch.setattr(home_workers, "ProcessPool", Watched)
    monkeypatch.setattr(home_workers, "cores", lambda: 2)

    def run(name, *words):
        ended = shh("replay", "log", "--plan", "plan.json", "--output", f"{name}.jsonl", *words, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    assert "3,001 rows" in run("small")
    assert not made, "a small log"
    assert "--memory is less than this command with 1 worker may take, 0.70 GB" in run("declared", "--memory", "300MB")
    assert made == [(1, 0)], "it may not fit"
    monkeypatch.setattr(home_workers, "_SMALL_LOG_BYTES", 1000)
    said = run("large", "--memory", "2GB", "--dead-letter", "bad.txt")
    assert "3,001 rows" in said
    assert " 1 unreadable" in said
    assert made[1:] == [(2, 950_000_000)]
    assert (tmp_path / "bad.txt").read_text().count("\n") == 1
    run("one", "--processes", "1")
    assert len(made) == 2
