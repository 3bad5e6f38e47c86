"""Tries mutated inputs in a process that may hang or die: whoever watches notes the case that did it, and goes on.

``python -m tests.fuzz.campaign SEED FOLDER READER:BEGIN:END ...`` is that process: for each case a line of JSON. The
system ends it where a case takes too much CPU, or waits.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import faulthandler
import itertools
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.fuzz.memory import Memory
from tests.fuzz.reader import FaultError, MutatedInput, Reader, mutated_input, outcome
from tests.fuzz.readers import all_readers

MOST_BYTES = 512 << 20  # that a case may take
MOST_SECONDS = 10.0  # of CPU
_MOST_WAITING_SECONDS = 100  # a case that takes no CPU waits for something: on no machine does a good one so long
_GUARD_BYTES = 8 << 30  # protects the machine; far above what is a fault
_CASES_PER_PROCESS = 20_000  # so that what libraries keep does not add up
_READ_TWICE_EVERY = 4
_BATCH = 32
_ROOT = pathlib.Path(__file__).parents[2]
_ENDED = {signal.SIGPROF: f"more than {2 * MOST_SECONDS:.0f} s of CPU", signal.SIGALRM: "it waits and takes no CPU"}


@dataclasses.dataclass
class Found:
    """Something that must not be, with the case that shows it: ``python -m tests.fuzz --case READER:SEED:NUMBER``."""

    case: str
    sample: str
    kind: str
    what: str


@dataclasses.dataclass
class Tally:
    """slowest: CPU seconds of the slowest case. memory: bytes, the most that a case took beyond what was held."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    faults: int = 0
    slowest: float = 0.0
    memory: int = 0

    def add(self, verdict: str, seconds: float, memory: int) -> None:
        self.cases += 1
        setattr(self, verdict, getattr(self, verdict) + 1)
        self.slowest, self.memory = max(self.slowest, seconds), max(self.memory, memory)


@dataclasses.dataclass
class Result:
    tally: Tally = dataclasses.field(default_factory=Tally)
    found: list[Found] = dataclasses.field(default_factory=list)


def run(counts: dict[str, int], seed: int) -> dict[str, Result]:
    """Tries so many cases of each reader, one process at a time."""
    results = {name: Result() for name in counts}
    while left := {name: at for name, result in results.items() if (at := result.tally.cases) < counts[name]}:
        tasks = [f"{name}:{at}:{min(counts[name], at + _CASES_PER_PROCESS)}" for name, at in left.items()]
        # In memory where the system has such a place: nothing of it has to outlive the machine.
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="shh-fuzz-", dir=place) as folder:
            _watch(tasks, seed, folder, results)
    return results


def _watch(tasks: list[str], seed: int, folder: str, results: dict[str, Result]) -> None:
    """All of the tasks, or to the case with which the process dies."""
    words = [sys.executable, "-m", "tests.fuzz.campaign", str(seed), folder, *tasks]
    environment, name = {**os.environ, "PYTHONPATH": str(_ROOT)}, ""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with subprocess.Popen(words, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout is not None
            for line in process.stdout:
                name, verdict, seconds, memory, *fault = json.loads(line)
                if fault:
                    results[name].found.append(Found(f"{name}:{seed}:{results[name].tally.cases}", *fault))
                if verdict:
                    results[name].tally.add(verdict, seconds, memory)
        if process.returncode == 0:
            return
        errors.seek(0)
        last_words = " | ".join([line for line in errors.read().splitlines() if "Extension modules" not in line][-12:])
    if process.returncode > 0 or not name:
        raise RuntimeError(f"the process ended by itself: {last_words[-1000:]}")
    number, reader, result = signal.Signals(-process.returncode), all_readers()[name], results[name]
    one = mutated_input(reader, reader.samples(), seed, result.tally.cases)
    kind, what = ("hang", _ENDED[number]) if number in _ENDED else ("crash", f"{number.name}: {last_words[:1000]}")
    result.found.append(Found(f"{name}:{seed}:{one.number}", one.sample.name, kind, what))
    result.tally.add("faults", 0, 0)


def alike(found: Iterable[Found]) -> list[tuple[int, Found]]:
    """Those of one kind and place are one fault: how many, and the first."""
    groups: dict[Any, list[Found]] = collections.defaultdict(list)
    for one in found:
        groups[one.kind, one.what[:80]].append(one)
    return sorted(((len(group), group[0]) for group in groups.values()), key=lambda pair: -pair[0])


# The process that tries them


def tried(reader: Reader, seed: int, begin: int, end: int, folder: str) -> Iterator[tuple[Any, ...]]:
    """Of each case the verdict, the CPU seconds and the memory that it took, and of a fault what it is."""
    os.mkdir(folder)
    samples = reader.samples()
    _warm_up(reader, samples, folder)
    base = Memory()
    for first in range(begin, end, _BATCH):
        inputs = [mutated_input(reader, samples, seed, n) for n in range(first, min(first + _BATCH, end))]
        placed = [reader.place(folder, f"m{one.number}", one.sample, one.data) for one in inputs]
        time.sleep(reader.settle_seconds)
        for one, place in zip(inputs, placed, strict=True):
            signal.setitimer(signal.ITIMER_PROF, 2 * MOST_SECONDS)  # since a case in four is read twice
            signal.alarm(_MOST_WAITING_SECONDS)
            began = time.process_time()
            verdict, *fault = _verdict(reader, one, place)
            seconds, memory = time.process_time() - began, base.grown()
            if not fault and (memory > MOST_BYTES or seconds > MOST_SECONDS):
                kind = "memory" if memory > MOST_BYTES else "slow"
                verdict, fault = "faults", [one.sample.name, kind, f"{memory >> 20} MB, {seconds:.1f} s of CPU"]
            yield (verdict, seconds, memory, *fault)
            if isinstance(place, str):
                with contextlib.suppress(OSError):
                    os.unlink(place)


def _verdict(reader: Reader, one: MutatedInput, place: Any) -> tuple[str, ...]:
    try:
        first = outcome(reader, one.sample, place)
        if one.number % _READ_TWICE_EVERY == 0 and (not isinstance(place, str) or os.path.isfile(place)):
            again = outcome(reader, one.sample, place)
            if again != first:
                raise FaultError("again", f"{first[0]}, and at the second reading {again[0]} or something else")
        return (first[0],)
    except FaultError as error:
        return "faults", one.sample.name, error.kind, str(error)


def _warm_up(reader: Reader, samples: Any, folder: str) -> None:
    """Libraries take memory when they are first used; and a sample that is refused would make a campaign of nothing."""
    for index, sample in enumerate(samples):
        place = reader.place(folder, f"s{index}", sample, sample.data)
        time.sleep(reader.settle_seconds)
        if outcome(reader, sample, place)[0] != "accepted":
            raise AssertionError(f"the sample {sample.name!r} of {reader.name} is refused")


def main(seed: str, folder: str, *tasks: str) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_DATA, (_GUARD_BYTES, _GUARD_BYTES))
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints
    for name, begin, end in (task.split(":") for task in tasks):
        cases = tried(all_readers()[name], int(seed), int(begin), int(end), f"{folder}/{name}")
        for case in itertools.chain([("", 0, 0)], cases):  # the first one says that this reader has begun
            lines.write(json.dumps([name, *case]) + "\n")
            lines.flush()
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
