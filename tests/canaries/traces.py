"""Runs a command in a folder of its own, and gathers all that it left or said: places by name, with their bytes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import pytest

from dp_transforms.cli.main import main
from dp_transforms.core.stage import WorkerStep
from dp_transforms.local.pool import Done, ProcessPool, ThisProcess
from dp_transforms.local.replay import ReadContributionsStep
from tests.canaries.search import Search, found_in
from tests.canaries.tokens import HASH_SEED
from tests.helpers import shh_process
from tests.helpers.leak_search import metrics_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDERS = {"HOME": "home", "TMPDIR": "tmp", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}
_NOT_FILES = ("/dev/", "/proc/", "/sys/")
_SECONDS_BETWEEN_LOOKS = 0.02
_PATIENCE_SECONDS = 600


class Ran(NamedTuple):
    """code: the exit code, negative for a signal. places: what is searched; what is said is among them."""

    code: int
    out: str
    err: str
    places: dict[str, bytes]


class Home:
    """A folder that holds all that a command may use: its current folder with a noise.key, home, temporary files.

    Files that exist are kept for the search when the command removes them. What Python code opens for writing outside
    of the folder is noted in ``outside``.
    """

    _watched: Home | None = None
    _is_hooked = False

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path / "home"
        self.work = self.path / "work"
        self._kept = path / "kept"
        for folder in (self._kept, self.work, *(self.path / name for name in _FOLDERS.values())):
            folder.mkdir(parents=True)
        self.environment = {name: str(self.path / folder) for name, folder in _FOLDERS.items()}
        self.outside: list[str] = []
        self._given: set[tuple[int, int]] = set()
        self._links: set[tuple[int, int]] = set()
        self.put("noise.key", bytes(range(32)), 0o600)

    def put(self, name: str, data: bytes, mode: int = 0o644) -> pathlib.Path:
        """Makes a file in the current folder, which the search passes over: the data itself."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
        self._given.add(_identity(path))
        return path

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """This process works in the folder."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            patch.setattr(tempfile, "tempdir", None)
            patch.chdir(self.work)
            if not Home._is_hooked:
                sys.addaudithook(_on_event)  # can never be taken away again: it does nothing where no home is watched
                Home._is_hooked = True
            Home._watched = self
            try:
                yield
            finally:
                Home._watched = None

    def on_event(self, name: str, arguments: Any) -> None:
        if name == "open":
            path, mode, flags = arguments
            writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or set(mode or "") & set("wax+")
            if writes and isinstance(path, str | bytes | os.PathLike):
                place = os.path.abspath(os.fsdecode(path))
                if not place.startswith((str(self.path.parent), *_NOT_FILES)) and "__pycache__" not in place:
                    self.outside.append(place)
        elif name in ("os.remove", "shutil.rmtree") and not isinstance(arguments[0], int):
            self.keep(pathlib.Path(os.fsdecode(arguments[0])))

    def keep(self, path: pathlib.Path) -> None:
        """Holds on to the content of a file, or of those below a folder, though their names go away."""
        path = path.absolute()
        if not path.is_relative_to(self.path):
            return
        for file in path.rglob("*") if path.is_dir() else (path,):
            with contextlib.suppress(OSError):
                if file.is_file() and _identity(file) not in self._links | self._given:
                    name = str(file.relative_to(self.path)).replace("/", "|")
                    os.link(file, self._kept / f"{len(self._links):05d}|{name}"[:200])
                    self._links.add(_identity(file))

    @contextlib.contextmanager
    def looked_after(self) -> Iterator[None]:
        """Keeps whatever appears, of any process, while the block runs."""
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(_SECONDS_BETWEEN_LOOKS):
                with contextlib.suppress(OSError):
                    self.keep(self.path)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def files(self) -> dict[str, bytes]:
        """All files that are or were there, but for those of `put`, and all names."""
        places = {}
        for path in sorted(self.path.rglob("*")):
            name = str(path.relative_to(self.path))
            places[f"name of {name}"] = os.fsencode(name)
            if path.is_symlink():
                places[f"link {name}"] = os.fsencode(os.readlink(path))
            elif path.is_file() and _identity(path) not in self._given:
                places[f"file {name}"] = path.read_bytes()
        for path in sorted(self._kept.iterdir()):
            name = path.name.partition("|")[2].replace("|", "/")
            places[f"name of {name}"] = os.fsencode(name)
            places[f"file {name} (kept, {path.name[:5]})"] = path.read_bytes()
        return places

    def clear(self) -> None:
        """As at the beginning: what is there is searched once."""
        for folder in (self.work, self._kept, *(self.path / name for name in _FOLDERS.values())):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self._links.clear()
        self._given.clear()
        self.outside.clear()
        self.put("noise.key", bytes(range(32)), 0o600)


def _identity(path: pathlib.Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _on_event(name: str, arguments: Any) -> None:
    if Home._watched is not None and name in ("open", "os.remove", "shutil.rmtree"):
        Home._watched.on_event(name, arguments)


class Recorded:
    """Job graphs, options and metrics of all pipelines of this process; of replays without an engine the messages to
    those who do their steps, their answers, and what they count. before_reading: done when such a replay has begun."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.places: dict[str, bytes] = {}
        self.before_reading: Callable[[], None] = lambda: None
        to_proto, run = beam.Pipeline.to_runner_api, beam.Pipeline.run

        def to_runner_api(pipeline: beam.Pipeline, *arguments: Any, **named: Any) -> Any:
            result = to_proto(pipeline, *arguments, **named)
            proto = result[0] if isinstance(result, tuple) else result
            self._add("job graph", proto.SerializeToString())
            self._add("options", repr(pipeline.options.get_all_options()).encode())
            return result

        def run_and_see(pipeline: beam.Pipeline, *arguments: Any, **named: Any) -> Any:
            result = run(pipeline, *arguments, **named)
            wait = result.wait_until_finish

            def wait_and_see(*words: Any, **more: Any) -> Any:
                try:
                    return wait(*words, **more)
                finally:
                    with contextlib.suppress(Exception):  # an engine that has gone
                        self._add("metrics", metrics_of(result))

            result.wait_until_finish = wait_and_see
            return result

        patch.setattr(beam.Pipeline, "to_runner_api", to_runner_api)
        patch.setattr(beam.Pipeline, "run", run_and_see)
        for workers in (ThisProcess, ProcessPool):
            patch.setattr(workers, "run", self._listening(workers.run))

    def _listening(self, run: Callable[..., Iterator[Done]]) -> Callable[..., Iterator[Done]]:
        def run_and_listen(workers: ThisProcess, step: WorkerStep, elements: Iterable[Any]) -> Iterator[Done]:
            elements = list(elements)
            self._add("message", pickle.dumps((step, elements)))
            if isinstance(step, ReadContributionsStep):
                self.before_reading()
            for done in run(workers, step, elements):
                self._add("message", pickle.dumps(done.outputs))
                self._add("counts", repr(done.counts).encode())
                yield done

        return run_and_listen

    def _add(self, what: str, data: bytes) -> None:
        if data not in self.places.values():
            self.places[f"{what} {len(self.places)}"] = data

    def taken(self) -> dict[str, bytes]:
        """What was recorded since the last time."""
        places, self.places = self.places, {}
        return places


class Shell:
    """Runs commands in the folder of the test, and searches all that they leave and say."""

    def __init__(self, home: Home, recorded: Recorded, search: Search, capfd: Any) -> None:
        self.home, self.recorded = home, recorded
        self._search, self._capfd = search, capfd

    def run(self, *words: object) -> Ran:
        return run_here(self.home, self.recorded, words, self._capfd)

    def leaks(self, ran: Ran) -> list[tuple[str, str]]:
        """Workers know labels, and users by keyed hashes alone."""
        found = found_in(self._search, ran.places)
        return [(place, kind) for place, kind in found if kind != "label" or not place.startswith("message")]

    def run_clean(self, *words: object, code: int = 0) -> Ran:
        """Runs, ends with this code, and finds nothing."""
        ran = self.run(*words)
        assert ran.code == code, ran.err
        assert self.leaks(ran) == []
        assert self.home.outside == [], "files outside of all folders that the command was given"
        assert "Traceback" not in ran.err
        return ran


def run_here(home: Home, recorded: Recorded, words: Sequence[object], capfd: Any) -> Ran:
    """Runs ``shh`` in this process."""
    before = signal.getsignal(signal.SIGTERM)
    message = ""
    capfd.readouterr()
    try:
        with home.used():
            main([str(word) for word in words])
        code = 0
    except SystemExit as stopped:
        code, message = int(stopped.code or 0), repr(stopped.code)
    finally:
        signal.signal(signal.SIGTERM, before)
    out, err = capfd.readouterr()
    places = {"stdout": out.encode(), "stderr": err.encode(), "exit message": message.encode()}
    return Ran(code, out, err, {**places, **recorded.taken(), **home.files()})


def run_apart(home: Home, command: Sequence[object], *, environment: dict[str, str] | None = None) -> Ran:
    """Runs a command of this Python in a process of its own."""
    more = {"PYTHONHASHSEED": HASH_SEED, **(environment or {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        home.looked_after(),
        shh_process.python(*command, cwd=home.work, environment={**home.environment, **more}, **pipes) as process,
    ):
        out, err = process.communicate(timeout=_PATIENCE_SECONDS)
    places = {"stdout": out.encode(), "stderr": err.encode(), "exit message": str(process.returncode).encode()}
    return Ran(process.returncode, out, err, {**places, **home.files()})


# A library that fails where nobody expects it, with two cells in its error, in every process that Python starts.
_QUOTING = """
from dp_transforms.core.event_batch import EventBatch
check = EventBatch.__post_init__
def quote(batch):
    check(batch)
    if len(batch):
        raise LookupError(f"odd row {batch.user[0]},{batch.item[0]}")
EventBatch.__post_init__ = quote
"""


def quoting_library(folder: pathlib.Path) -> dict[str, str]:
    """The environment in which it does so."""
    (folder / "plant").mkdir()
    (folder / "plant" / "sitecustomize.py").write_text(_QUOTING)
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder / "plant", ROOT)))}
