"""A replay by worker processes publishes what one process publishes, byte by byte, or nothing."""

import dataclasses
import functools
import gzip
import itertools
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
from dp_transforms.cli import replay_run
from dp_transforms.cli.options import LogError
from dp_transforms.cli.replay_run import ReplayRequest, run_replay
from dp_transforms.errors import UserError
from dp_transforms.local import machine, pool
from dp_transforms.local.pool import BlobStore, ProcessPool
from dp_transforms.logs import EventFields, find_log_chunks
from tests.helpers.crowded_logs import RANGE, SCHEDULE, replay_request, write_crowded_log
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import run_python
from tests.helpers.small_runs import key_file

ALL_IN_MEMORY, ALL_ON_DISK = 1 << 40, 0
BUDGET = (*RANGE, "--epsilon", "2", "--delta", "1e-6")


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


@pytest.fixture
def workers(monkeypatch):
    """Has all replays use so many processes, with so much memory for what lies between two steps."""

    def use(number, memory):
        monkeypatch.setattr(ReplayRequest, "spread", machine.Spread(number, memory))

    return use


def bytes_of(store):
    """In memory now, and on disk ever."""
    in_memory, on_disk = map(os.fstat, store.files)
    return in_memory.st_blocks * 512, on_disk.st_size


@pytest.fixture
def stores(monkeypatch):
    """All stores of what lies between two steps: bytes in memory and on disk, when they are closed."""
    seen = []
    close = BlobStore.close

    def look_and_close(store):
        seen.append(bytes_of(store))
        close(store)

    monkeypatch.setattr(BlobStore, "close", look_and_close)
    return seen


def replayed(request):
    """The report, the dead letter, and what the operator is told of the rows."""
    summary = run_replay(request)
    assert request.dead_letter is not None
    bad = pathlib.Path(request.dead_letter).read_bytes()
    return pathlib.Path(request.output).read_bytes(), bad, dataclasses.replace(summary, seconds=0)


PLANS = {
    "looks": lambda: looks_plan_of(SCHEDULE, most_ids=5000),
    "hits-with-counts": lambda: Plan.for_hits(epsilon=6, delta=1e-3, schedule=SCHEDULE, counts=True),
}


@pytest.mark.parametrize(
    ("kind", "processes", "memory", "shards"), [("looks", 3, 20_000, 5), ("hits-with-counts", 1, ALL_ON_DISK, None)]
)
def test_processes_memory_and_shards_change_no_byte(
    kind, processes, memory, shards, request_of, workers, stores, monkeypatch
):
    """Where not all that lies between two steps is kept in memory; where it is: tests/conformance."""
    plan = PLANS[kind]()
    workers(0, 0)
    expected = replayed(request_of("here.jsonl", plan))
    workers(processes, memory)
    monkeypatch.setattr(replay_run, "shards_of_log", lambda *_, **__: shards)
    found = replayed(request_of("there.jsonl", plan))
    ((in_memory, on_disk),) = stores
    if kind == "looks":  # windows of the other are cut into small pieces, which travel themselves
        assert on_disk
        assert in_memory < 20_000, "what was used is given back"
    assert b"i1" in expected[0]
    assert expected[1].count(b"\n") == 5
    assert (found[0], found[1].replace(b"there", b"here")) == expected[:2]
    assert found[2] == expected[2]


def ended_by(number, monkeypatch):
    """A worker that ends so at its first task."""
    monkeypatch.setattr(pool, "_begin", functools.partial(_begin_and_end, number))


def _begin_and_end(number, *arguments):
    pool._begin(*arguments)
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_fails_the_run_in_one_line(request_of, workers, monkeypatch, tmp_path, number):
    request = request_of("report.jsonl", PLANS["looks"]())
    workers(2, ALL_IN_MEMORY)
    ended_by(number, monkeypatch)
    reason = ", perhaps for lack of memory" if number == signal.SIGKILL else ""
    said = rf"a worker process was ended by signal {int(number)}{reason}; nothing was published\."
    with pytest.raises(UserError, match=said):
        run_replay(request)
    assert not pathlib.Path(request.output).exists()
    assert not [path for path in tmp_path.iterdir() if "draft" in path.name or path.name.startswith(".")]


def test_a_task_puts_no_more_into_memory_than_there_is_room_for(request_of, workers, stores, tmp_path):
    """A packed log is read by one task, whatever it unpacks to: here 16 MB of labels from some 40 kB."""
    path = tmp_path / "long.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for number in range(1_000):
            file.write(f'{{"user":"u","item":"{number:016384d}","timestamp":"2026-01-01T00:00:01Z"}}\n')
    chunks = find_log_chunks([str(path)], EventFields())
    workers(1, 2_000_000)
    replayed(dataclasses.replace(request_of("report.jsonl", PLANS["looks"]()), chunks=chunks))
    ((_, on_disk),) = stores
    assert on_disk > 12_000_000


@pytest.mark.parametrize("size", [5_000, 3 << 20])
@pytest.mark.parametrize("most", [ALL_IN_MEMORY, ALL_ON_DISK])
def test_what_is_stored_is_read_again_until_it_is_given_back(size, most):
    store = BlobStore(most)
    blobs = [os.urandom(size) for _ in range(3)]
    handles = [store.put(blob) for blob in blobs]
    assert bool(bytes_of(store)[1]) == (most == ALL_ON_DISK)
    assert [bytes(store.get(handle)) for handle in handles] == blobs
    store.free(handles[1])
    assert [bytes(store.get(handle)) for handle in (handles[0], handles[2])] == [blobs[0], blobs[2]]
    assert bytes_of(store)[0] <= 2 * size + 8192 or most == ALL_ON_DISK
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


def test_a_log_that_is_written_to_after_it_was_read_is_refused_too(request_of, tmp_path, monkeypatch):
    """Nothing of it is published, nor the list of rows that cannot be read."""
    request = request_of("report.jsonl", PLANS["looks"]())
    replay = replay_run._replay

    def replay_and_write(*arguments):
        made = replay(*arguments)
        with (tmp_path / "log" / "bad.jsonl").open("a") as file:
            file.write("one more\n")
        return made

    monkeypatch.setattr(replay_run, "_replay", replay_and_write)
    with pytest.raises(LogError, match=r"bad\.jsonl: it was changed while it was read"):
        run_replay(request)
    assert {path.name for path in tmp_path.iterdir()} == {"log", "noise.key"}


@pytest.mark.parametrize("number", [0, 1])
def test_an_error_of_a_library_in_a_step_shows_no_word_of_it(request_of, workers, monkeypatch, number):
    request = request_of("report.jsonl", PLANS["looks"]())
    workers(number, ALL_IN_MEMORY)
    monkeypatch.setattr(replay_run, "_noise_key", lambda *_: b"short")
    with pytest.raises(UserError, match=r"failed with ValueError at dp_transforms/.*nothing was published") as error:
        run_replay(request)
    assert "32 bytes" not in str(error.value)


def test_the_key_is_in_no_command_line_and_in_no_environment(request_of, workers, monkeypatch):
    request = request_of("report.jsonl", PLANS["looks"]())
    secret = pathlib.Path(str(request.noise_key)).read_bytes()
    workers(2, ALL_ON_DISK)
    seen, processes = [b""], set()
    close = BlobStore.close

    def look(store):
        seen.append(os.pread(store.files[True], 1 << 24, 0))
        close(store)

    def looked(pool, *arguments):
        for process in psutil.Process().children(recursive=True):
            folder = pathlib.Path(f"/proc/{process.pid}")
            processes.add(process.pid)
            seen.append((folder / "cmdline").read_bytes() + (folder / "environ").read_bytes())
        leave(pool, *arguments)

    leave = ProcessPool.__exit__
    monkeypatch.setattr(ProcessPool, "__exit__", looked)
    monkeypatch.setattr(BlobStore, "close", look)
    replayed(request)
    assert len(processes) >= 3, "the fork server and two workers"
    assert len(seen[-1]) > 50_000
    for form in (secret, secret.hex().encode()):
        assert form not in b"".join(seen)


STARTED = "import os, sys; from dp_transforms.cli.main import main; main(sys.argv[1:])"


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_workers_end_with_a_replay_that_is_stopped(tmp_path, short_folder, stop, code):
    write_crowded_log(tmp_path / "log", 800_000, 10_000)
    words = ["replay", "log", *BUDGET, "--processes", "2", "--memory", "1MB", "--output", "report.avro"]
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {STARTED}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(short_folder)},
    )
    for _ in range(6000):
        others = psutil.Process(process.pid).children(recursive=True)
        if len(others) == 4 and sum(other.cpu_times().user > 0.02 for other in others) > 2:  # both workers work
            break
        time.sleep(0.01)
    assert len(others) == 4, "two workers, their fork server, and what sees to it that nothing is left of these"
    process.send_signal(stop)
    _, stderr_text = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in stderr_text
    _, alive = psutil.wait_procs(others, timeout=20)
    assert not alive
    left = {path.name for path in tmp_path.iterdir()}
    if stop == signal.SIGKILL:  # the next run removes its draft
        left = {name for name in left if not name.startswith(".report.avro.")}
    assert left == {"log"}
    assert not list(short_folder.iterdir())


@pytest.mark.parametrize(
    ("label", "other", "shards"), [("x" * 4_000, "", 16), ("x", "x" * 4_000, 8)], ids=["labels", "another column"]
)
def test_long_labels_are_cut_into_more_shards(tmp_path, monkeypatch, label, other, shards):
    """A worker has all labels of a shard at once; what a field has that is not read costs nothing."""
    monkeypatch.setattr(machine, "_LABEL_BYTES_PER_SHARD", 500_000)
    path, rows = tmp_path / "log.parquet", range(2_000)
    columns = {name: [f"{text}{row}" for row in rows] for name, text in (("item", label), ("other", other))}
    pq.write_table(pa.table({"user": ["u"] * 2_000, "timestamp": pa.array(rows, pa.timestamp("s")), **columns}), path)
    chunks = find_log_chunks([str(path)], EventFields())
    found = machine.shards_of_log(chunks, SCHEDULE, EventFields(), pays_tests=True)
    assert found == pytest.approx(shards, abs=1)


def test_the_command_uses_processes_by_itself_for_a_log_that_is_not_small(tmp_path, monkeypatch):
    write_crowded_log(tmp_path / "log", 3000, 200)
    (tmp_path / "log" / "bad.jsonl").write_text("no row\n")
    (tmp_path / "plan.json").write_text(PLANS["looks"]().to_json())
    made = []

    class Watched(ProcessPool):
        def __init__(self, number, memory_bytes, *others, **options):
            made.append((number, memory_bytes))
            super().__init__(number, memory_bytes, *others, **options)

    monkeypatch.setattr(machine, "ProcessPool", Watched)
    monkeypatch.setattr(machine, "cores", lambda: 2)

    def run(name, *words):
        ended = shh("replay", "log", "--plan", "plan.json", "--output", f"{name}.jsonl", *words, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    assert "3,001 rows" in run("small")
    assert not made, "a small log"
    run("one", "--processes", "1")
    assert not made
    monkeypatch.setattr(machine, "SMALL_LOG_BYTES", 1000)
    said = run("large", "--memory", "2GB", "--dead-letter", "bad.txt")
    assert "3,001 rows" in said
    assert " 1 unreadable" in said
    assert made == [(2, 950_000_000)]
    assert (tmp_path / "bad.txt").read_text().count("\n") == 1
    assert "--memory is less than this command with 1 worker may take, 0.70 GB" in run("declared", "--memory", "300MB")
    assert made[1:] == [(1, 0)]
    monkeypatch.setattr(machine, "_available_bytes", lambda: 800_000_000)
    run("little")
    assert made[2:] == [(1, 100_000_000)], "one process, and the rest on disk"


def test_a_replay_on_this_machine_loads_no_engine(tmp_path):
    """Neither the command nor its workers, nor `replay` of a table."""
    write_crowded_log(tmp_path / "log", 3000, 200)
    key = key_file(tmp_path)
    for kind, make in PLANS.items():
        (tmp_path / f"{kind}.json").write_text(make().to_json())
    part = ["--state", "run.state", "--noise-key-file", key, "--until", "2026-01-01T04:00:00Z"]
    for number, (kind, more) in enumerate(itertools.product(PLANS, ([], ["--processes", "2"], part))):
        words = ["replay", "log", "--plan", f"{kind}.json", "--output", f"{number}.jsonl", *more]
        ended = run_python("-c", f"{LOADED}main(sys.argv[1:])", *words, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert not set(ended.stdout.splitlines()[-1].split()) & {"apache_beam", "scipy"}
        (tmp_path / "run.state").unlink(missing_ok=True)
    table = "import pyarrow.parquet as pq; from dp_transforms import replay\n"
    table += "replay(pq.read_table('log/part-1.parquet'), start='2026-01-01', end='2026-01-02', window='1h', epsilon=2,"
    ended = run_python("-c", f"{LOADED}{table} delta=1e-6)", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "apache_beam" not in ended.stdout.split()


LOADED = (
    "import atexit, sys; from dp_transforms.cli.main import main;"
    " atexit.register(lambda: print(*{name.partition('.')[0] for name in sys.modules}))\n"
)
