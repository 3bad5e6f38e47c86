"""The process that tries mutated inputs: it may hang or die, and whoever watches it knows at which one."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import mmap
import os
import struct
import sys
import tempfile
import time
from typing import Any

from tests.fuzz.memory import Memory
from tests.fuzz.reader import FaultError, MutatedInput, Reader, mutated_input, outcome
from tests.fuzz.readers import all_readers

MOST_BYTES = 512 << 20  # that a case may take
MOST_SECONDS = 10.0  # of CPU
_READ_TWICE_EVERY = 4
_BATCH = 32
_LAYOUT = struct.Struct("<qdqqqqdqq")  # of a tally in a mapped file: another process reads it, also after a crash


@dataclasses.dataclass(frozen=True)
class Task:
    """The cases begin .. end - 1 of one reader."""

    reader: str
    seed: int
    begin: int
    end: int


@dataclasses.dataclass
class Tally:
    """number: the case that runs now; -1 before the first one and after the last. began: its process's CPU seconds when
    it began. slowest: CPU seconds of the slowest case, of this number. memory: bytes, the most that a case took beyond
    what the process had before the first."""

    number: int = -1
    began: float = 0.0
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    faults: int = 0
    slowest: float = 0.0
    slowest_number: int = -1
    memory: int = 0


class SharedTally:
    """A `Tally` in a file. Every field is written at once, so that a reader sees the figures of one moment."""

    def __init__(self, path: str) -> None:
        with open(path, "a+b") as file:
            file.truncate(_LAYOUT.size)
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def write(self, tally: Tally) -> None:
        self._map[:] = _LAYOUT.pack(*dataclasses.astuple(tally))

    def read(self) -> Tally:
        return Tally(*_LAYOUT.unpack(self._map[:]))


def run(task: Task, tally_path: str, findings_path: str, folder: str) -> None:
    """Tries all cases of the task; appends what must not be to the findings, a JSON object a line.

    folder: for the mutated inputs; whoever watches removes it.
    """
    faulthandler.enable()
    reader = all_readers()[task.reader]
    samples = reader.samples()
    shared, tally = SharedTally(tally_path), SharedTally(tally_path).read()
    base = Memory()
    with open(findings_path, "a", encoding="utf-8") as findings, tempfile.TemporaryDirectory(dir=folder) as own:
        _warm_up(reader, samples, own)
        base = Memory()
        for first in range(task.begin, task.end, _BATCH):
            inputs = [mutated_input(reader, samples, task.seed, n) for n in range(first, min(first + _BATCH, task.end))]
            placed = [reader.place(own, f"m{one.number}", one.sample, one.data) for one in inputs]
            time.sleep(reader.settle_seconds)
            for one, place in zip(inputs, placed, strict=True):
                _try(reader, one, place, tally, shared, base, findings)
                if isinstance(place, str):
                    with contextlib.suppress(OSError):
                        os.unlink(place)
    tally.number = -1
    shared.write(tally)


def _warm_up(reader: Reader, samples: Any, folder: str) -> None:
    """Libraries take memory when they are first used; and a sample that is refused would make a campaign of nothing."""
    for index, sample in enumerate(samples):
        place = reader.place(folder, f"s{index}", sample, sample.data)
        time.sleep(reader.settle_seconds)
        if outcome(reader, sample, place)[0] != "accepted":
            raise AssertionError(f"the sample {sample.name!r} of {reader.name} is refused")


def _try(
    reader: Reader, one: MutatedInput, place: Any, tally: Tally, shared: SharedTally, base: Memory, findings: Any
) -> None:
    tally.number, tally.began = one.number, time.process_time()
    shared.write(tally)
    fault = None
    try:
        verdict, result = outcome(reader, one.sample, place)
        if one.number % _READ_TWICE_EVERY == 0 and (not isinstance(place, str) or os.path.isfile(place)):
            again = outcome(reader, one.sample, place)
            if again != (verdict, result):
                raise FaultError("again", f"{verdict}, and at the second reading {again[0]} or something else")
        tally.accepted += verdict == "accepted"
        tally.refused += verdict == "refused"
    except FaultError as error:
        fault = error
    seconds, memory = time.process_time() - tally.began, base.grown()
    if fault is None and memory > MOST_BYTES:
        fault = FaultError("memory", f"{memory >> 20} MB")
    if fault is None and seconds > MOST_SECONDS:
        fault = FaultError("slow", f"{seconds:.1f} s of CPU")
    if seconds > tally.slowest:
        tally.slowest, tally.slowest_number = seconds, one.number
    tally.memory = max(tally.memory, memory)
    tally.cases += 1
    if fault is not None:
        tally.faults += 1
        findings.write(finding(reader.name, one, fault.kind, str(fault)) + "\n")
        findings.flush()
    tally.number = -1
    shared.write(tally)


def finding(reader: str, one: MutatedInput, kind: str, what: str) -> str:
    return json.dumps({"reader": reader, "number": one.number, "sample": one.sample.name, "kind": kind, "what": what})


def main() -> None:
    """Tasks as JSON lines on standard input, one after the other; each answered by a line when it is done."""
    tally_path, findings_path, folder = sys.argv[1:]
    for line in sys.stdin:
        run(Task(**json.loads(line)), tally_path, findings_path, folder)
        print("done", flush=True)


if __name__ == "__main__":
    main()
