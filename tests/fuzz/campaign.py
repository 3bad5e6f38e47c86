"""Watches processes that try mutated inputs: notes a crash, a hang or too much memory with the case, and goes on."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

import psutil

from tests.fuzz.reader import mutated_input
from tests.fuzz.readers import all_readers
from tests.fuzz.worker import MOST_SECONDS, SharedTally, Tally, Task

_ROOT = pathlib.Path(__file__).parents[2]
_LOOK_SECONDS = 0.5
_CASES_PER_PROCESS = 20_000  # so that what libraries keep does not add up
# A case that takes no CPU waits for something. On a machine ten times slower none does so for as long.
_MOST_WAITING_SECONDS = 100.0
_GUARD_BYTES = 4 << 30  # protects the machine; far above what is a fault


@dataclasses.dataclass
class Found:
    """Something that must not be, with the case that shows it: ``python -m tests.fuzz --case READER:SEED:NUMBER``."""

    reader: str
    seed: int
    number: int
    sample: str
    kind: str
    what: str

    @property
    def case(self) -> str:
        return f"{self.reader}:{self.seed}:{self.number}"


@dataclasses.dataclass
class Result:
    tallies: dict[str, Tally] = dataclasses.field(default_factory=dict)
    found: list[Found] = dataclasses.field(default_factory=list)


def run(cases: dict[str, int], seed: int, folder: pathlib.Path) -> Result:
    """Tries ``cases`` of each reader, one process at a time. folder: an empty one, for what the processes tell."""
    result, watched = Result(), _Watched(folder)
    try:
        for name, count in cases.items():
            tally = Tally()
            for begin in range(0, count, _CASES_PER_PROCESS):
                if begin:
                    watched.stop()
                task = Task(name, seed, begin, min(count, begin + _CASES_PER_PROCESS))
                while task.begin < task.end:
                    task = watched.run(task, tally, result.found)
            result.tallies[name] = tally
    finally:
        watched.close()
    return result


class _Watched:
    """One process that tries mutated inputs, started anew when it dies."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._tally_path, self._findings = folder / "tally", folder / "findings"
        self._findings.touch()
        self._read_to = 0
        self._shared = SharedTally(str(self._tally_path))
        self._process: subprocess.Popen[str] | None = None
        # In memory where the system has such a place: nothing of it has to outlive the machine.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._inputs = tempfile.TemporaryDirectory(prefix="shh-fuzz-", dir=memory)

    def run(self, task: Task, tally: Tally, found: list[Found]) -> Task:
        """Runs the task, or as much of it as the process lives. Returns what is left of it."""
        self._shared.write(tally)
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(dataclasses.asdict(task)) + "\n")
        process.stdin.flush()
        death = self._wait(process)
        now = self._shared.read()
        vars(tally).update(vars(now))
        found += self._new_findings(task.seed)
        if death is None:
            return dataclasses.replace(task, begin=task.end)
        self.stop()
        if now.number < 0:
            raise RuntimeError(f"the process died between two cases: {self._last_words()}")
        reader = all_readers()[task.reader]
        one = mutated_input(reader, reader.samples(), task.seed, now.number)
        found.append(Found(task.reader, task.seed, one.number, one.sample.name, *death))
        tally.cases, tally.faults, tally.number = tally.cases + 1, tally.faults + 1, -1
        return dataclasses.replace(task, begin=now.number + 1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        self._inputs.cleanup()

    def _start(self) -> subprocess.Popen[str]:
        with open(self._folder / "stderr", "w") as stderr:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.fuzz.worker",
                    str(self._tally_path),
                    str(self._findings),
                    self._inputs.name,
                ],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )

    def _wait(self, process: subprocess.Popen[str]) -> tuple[str, str] | None:
        """None when the task is done; else the kind of its death and what is known of it."""
        assert process.stdout is not None
        watched, since, number, cpu = psutil.Process(process.pid), time.monotonic(), -1, 0.0
        while True:
            if select.select([process.stdout], [], [], _LOOK_SECONDS)[0]:
                if process.stdout.readline() == "done\n":
                    return None
                code = process.wait()
                name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                return "crash", f"{name}: {self._last_words()}"
            tally = self._shared.read()
            times = watched.cpu_times()
            if tally.number < 0:
                since = time.monotonic()
                continue
            if tally.number != number:
                number, cpu, since = tally.number, times.user + times.system, time.monotonic()
            if watched.memory_info().rss > _GUARD_BYTES:
                return "memory", f"more than {_GUARD_BYTES >> 30} GB at once"
            used = times.user + times.system - tally.began
            waited = time.monotonic() - since - (times.user + times.system - cpu)
            # Twice the limit of a case, since a case in four is read twice.
            if used > 2 * MOST_SECONDS or waited > _MOST_WAITING_SECONDS:
                return "hang", f"{used:.0f} s of CPU, {waited:.0f} s of waiting"

    def _new_findings(self, seed: int) -> Iterator[Found]:
        with open(self._findings, encoding="utf-8") as file:
            file.seek(self._read_to)
            lines = file.read()
            self._read_to = file.tell()
        for line in lines.splitlines():
            yield Found(seed=seed, **json.loads(line))

    def _last_words(self) -> str:
        lines = (self._folder / "stderr").read_text(errors="replace").splitlines()
        words = [line.strip() for line in lines if not line.startswith("Extension modules")]
        return " | ".join(words[-12:])[:1000]


def alike(found: Iterable[Found]) -> list[tuple[int, Found]]:
    """Those of one reader, kind and place are one fault: how many, and the first."""
    groups: dict[Any, list[Found]] = collections.defaultdict(list)
    for one in found:
        groups[one.reader, one.kind, one.what[:80]].append(one)
    return sorted(((len(group), group[0]) for group in groups.values()), key=lambda pair: -pair[0])
