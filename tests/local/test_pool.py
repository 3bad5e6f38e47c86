"""A replay by worker processes publishes what one process publishes, byte by byte, or nothing; and leaves nothing."""

import dataclasses
import functools
import gzip
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

import psutil
import pytest

from dp_transforms import Plan
from dp_transforms.cli import replay_run
from dp_transforms.cli.replay_run import run_replay
from dp_transforms.errors import LogError, UserError
from dp_transforms.local import pool
from dp_transforms.local.pool import OnDisk, ProcessPool, ThisProcess, _Kept
from dp_transforms.local.replay import LocalReplay
from dp_transforms.logs import EventFields, find_log_chunks
from tests.helpers.contributions_plans import contributions_plan_of
from tests.helpers.crowded_logs import RANGE, SCHEDULE, replay_request, write_crowded_log
from tests.helpers.shh_process import run_python
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL_IN_MEMORY, ALL_ON_DISK = 1 << 40, 0


@functools.cache
def plan_of(kind):
    if kind == "contributions":
        return contributions_plan_of(SCHEDULE, most_ids=5000)
    return Plan.for_hits(epsilon=6, delta=1e-3, schedule=SCHEDULE, counts=True)


@pytest.fixture
def request_of(tmp_path):
    log = write_crowded_log(tmp_path / "log", 40_000, 600)
    good = '{"user": "u1", "item": "i1", "timestamp": "2026-01-01T00:00:01Z"}\n'
    (tmp_path / "log" / "bad.jsonl").write_text(good * 3 + "no row\n" * 5)
    key = key_file(tmp_path)

    def make(name, kind="contributions", **changes):
        words = {"key_path": key, "dead_letter": str(tmp_path / f"{name}.bad"), **changes}
        return replay_request(log, plan_of(kind), tmp_path / name, **words)

    return make


@pytest.fixture
def workers(monkeypatch):
    """Has all replays use so many processes, with so much memory for what lies between two steps."""

    def use(number, memory):
        def start(size, secret, processes=None):
            return ProcessPool(number, memory, secret) if number else ThisProcess(secret)

        monkeypatch.setattr(replay_run, "start_workers", start)

    return use


@pytest.fixture
def kept(monkeypatch):
    """What each step keeps for the next one: packed columns in memory, or where they lie on disk."""
    seen, output = defaultdict(list), _Kept.output

    def look(step, made):
        kept = output(step, made)
        if type(kept) is tuple:
            seen[step].append(kept[1])
        return kept

    monkeypatch.setattr(_Kept, "output", look)
    return seen


def on_disk(kept):
    return sum(blob.length for blobs in kept.values() for blob in blobs if isinstance(blob, OnDisk))


def replayed(request):
    """The report, the dead letter, and what the operator is told of the rows."""
    summary = run_replay(request)
    bad = pathlib.Path(request.dead_letter).read_bytes()
    return pathlib.Path(request.output).read_bytes(), bad, summary


@pytest.mark.parametrize(
    ("kind", "processes", "memory", "shards"),
    [("contributions", 3, 20_000, 5), ("hits-with-counts", 1, ALL_ON_DISK, None)],
)
def test_processes_memory_and_shards_change_no_byte(
    kind, processes, memory, shards, request_of, workers, kept, monkeypatch
):
    """Where not all that lies between two steps is kept in memory; where it is: tests/conformance."""
    workers(0, 0)
    expected = replayed(request_of("here.jsonl", kind))
    workers(processes, memory)
    monkeypatch.setattr(replay_run, "shards_of_log", lambda *_: shards)
    found = replayed(request_of("there.jsonl", kind))
    assert on_disk(kept)
    for blobs in kept.values():
        assert sum(len(blob) for blob in blobs if isinstance(blob, bytes)) <= memory // 3
    assert b"i1" in expected[0]
    assert expected[1].count(b"\n") == 5
    assert (found[0], found[1].replace(b"there", b"here"), found[2]) == expected


def test_a_task_puts_no_more_into_memory_than_there_is_room_for(request_of, workers, kept, tmp_path):
    """A packed log is read by one task, whatever it unpacks to: here 16 MB of labels from some 40 kB."""
    path = tmp_path / "long.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for number in range(1_000):
            file.write(f'{{"user":"u","item":"{number:016384d}","timestamp":"2026-01-01T00:00:01Z"}}\n')
    chunks = find_log_chunks([str(path)], EventFields())
    workers(1, 2_000_000)
    replayed(dataclasses.replace(request_of("report.jsonl"), chunks=chunks))
    assert on_disk(kept) > 12_000_000


def test_what_is_on_disk_is_read_again_and_goes_when_nobody_has_it():
    kept, blobs = _Kept(10_000), [os.urandom(5_000) for _ in range(4)]
    handles = [kept.output((number, blob))[1] for number, blob in enumerate(blobs)]
    assert [type(handle) for handle in handles] == [bytes, bytes, OnDisk, OnDisk]
    assert list(map(bytes, handles)) == blobs
    assert pickle.loads(pickle.dumps(handles)) == blobs, "to a worker they travel as bytes"  # noqa: S301
    file = handles[-1].file.fileno()
    assert not os.fstat(file).st_nlink, "it has no name"
    del kept, handles
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def _begin_and_die(*arguments):
    pool._begin(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_fails_the_run_in_one_line(request_of, workers, monkeypatch, tmp_path):
    request = request_of("report.jsonl")
    workers(2, ALL_IN_MEMORY)
    monkeypatch.setattr(pool, "_begin", _begin_and_die)
    with pytest.raises(UserError, match=r"a worker process ended.* lack of memory.*nothing was published\."):
        run_replay(request)
    assert {path.name for path in tmp_path.iterdir()} == {"log", "noise.key"}


def test_a_log_that_is_written_to_after_it_was_read_is_refused_too(request_of, tmp_path, monkeypatch):
    """Nothing of it is published, nor the list of rows that cannot be read."""
    take = LocalReplay.take

    def take_and_write(*arguments):
        made = take(*arguments)
        with (tmp_path / "log" / "bad.jsonl").open("a") as file:
            file.write("one more\n")
        return made

    monkeypatch.setattr(LocalReplay, "take", take_and_write)
    with pytest.raises(LogError, match=r"bad\.jsonl: it was changed while it was read"):
        run_replay(request_of("report.jsonl"))
    assert {path.name for path in tmp_path.iterdir()} == {"log", "noise.key"}


STARTED = "import os, sys; from dp_transforms.cli.main import main; main(sys.argv[1:])"


class Large:
    """A step whose outputs are longer than a pipe takes at once."""

    def start(self, secret):
        return lambda element, counts: iter([(element, bytes(30_000_000))])


def test_a_run_that_fails_ends_also_while_workers_hand_back_what_they_made():
    """Each is killed in the middle of it: nobody waits for the rest."""
    script = (
        "import sys; sys.path.insert(0, '.'); from tests.local.test_pool import *\n"
        "if __name__ == '__main__':\n    with ProcessPool(2, 0, b's' * 32) as workers:\n"
        "        next(iter(workers.run(Large(), range(40)))); raise SystemExit(3)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60, capture_output=True)
    assert done.returncode == 3, done.stderr


def test_a_full_disk_fails_the_run_in_one_line(request_of, tmp_path):
    """Files may have 20 kB."""
    request_of("report.jsonl")
    (tmp_path / "plan.json").write_text(plan_of("contributions").to_json())
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    limit += "from dp_transforms.local import machine; machine.free_memory_bytes = lambda: 0\n"
    words = ["replay", "log", "--plan", "plan.json", "--output", "report.jsonl", "--processes", "2"]
    ended = run_python("-c", limit + STARTED, *words, cwd=tmp_path)
    assert ended.returncode == 1
    said = "shh: what lies between two steps cannot be stored: .*nothing was published. Give TMPDIR.*"
    assert re.fullmatch(said, ended.stderr.splitlines()[-1])
    assert not (tmp_path / "report.jsonl").exists()


def test_the_key_is_in_no_command_line_in_no_environment_and_not_on_disk(request_of, workers, kept, monkeypatch):
    request, seen, processes = request_of("report.jsonl"), [], set()
    secret = pathlib.Path(request.noise_key).read_bytes()
    workers(2, ALL_ON_DISK)
    leave = ProcessPool.__exit__

    def looked(pool, *arguments):
        for process in psutil.Process().children(recursive=True):
            folder = pathlib.Path(f"/proc/{process.pid}")
            processes.add(process.pid)
            seen.append((folder / "cmdline").read_bytes() + (folder / "environ").read_bytes())
        leave(pool, *arguments)

    monkeypatch.setattr(ProcessPool, "__exit__", looked)
    replayed(request)
    seen += [bytes(blob) for blobs in kept.values() for blob in blobs]
    assert len(processes) >= 3, "the fork server and two workers"
    assert on_disk(kept) > 50_000
    for form in (secret, secret.hex().encode()):
        assert form not in b"".join(seen)


@pytest.fixture(scope="module")
def large_log(tmp_path_factory):
    """Of which workers read for seconds."""
    return write_crowded_log(tmp_path_factory.mktemp("large") / "log", 800_000, 10_000)


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_workers_end_with_a_replay_that_is_stopped(large_log, tmp_path, stop, code):
    temporary = tempfile.mkdtemp()  # a short path: a socket is in it
    words = ["replay", str(large_log), *RANGE, "--epsilon", "2", "--delta", "1e-6", "--processes", "2"]
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {STARTED}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words, "--output", "report.avro"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": temporary},
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
    if stop == signal.SIGKILL:  # it may leave a draft
        left = {name for name in left if not name.startswith(".report.avro.")}
    assert not left
    assert not [path for path in pathlib.Path(temporary).rglob("*") if path.is_file()]
    shutil.rmtree(temporary)  # a socket may be left


SEEN = """
import contextlib, os, sys
from dp_transforms.cli.main import main
for words in {commands!r}:
    sys.argv[1:] = words.split()
    with contextlib.suppress(SystemExit):
        main()
print(os.path.exists("loaded"), *(name.partition('.')[0] for name in sys.modules))
"""


def test_a_replay_on_this_machine_loads_no_engine_and_no_pandas(request_of, tmp_path):
    """Neither the command nor its workers, though pyarrow asks for pandas with the first array, and Beam on import."""
    request_of("report.jsonl")
    commands = []
    for kind, number in (("hits-with-counts", 1), ("contributions", 2)):
        (tmp_path / f"{kind}.json").write_text(plan_of(kind).to_json())
        commands.append(f"replay log --plan {kind}.json --processes {number} --output {kind}.jsonl")
    installed, loaded = tmp_path / "installed" / "pandas", tmp_path / "loaded"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text(f"open({str(loaded)!r}, 'w').close()\nraise ImportError\n")
    environment = {"PYTHONPATH": os.pathsep.join([str(installed.parent), *sys.path])}
    ended = run_python("-c", SEEN.format(commands=commands), cwd=tmp_path, environment=environment)
    assert ended.returncode == 0, ended.stderr
    assert all((tmp_path / f"{kind}.jsonl").exists() for kind in ("hits-with-counts", "contributions")), ended.stderr
    was_loaded, *modules = ended.stdout.splitlines()[-1].split()
    assert not {*modules} & {"apache_beam", "scipy"}
    assert was_loaded == "False"
    run_python("-c", "import pyarrow; pyarrow.array(['a'])", cwd=tmp_path, environment=environment)
    assert loaded.exists(), "pyarrow loads what stands there"
