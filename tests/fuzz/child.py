"""One input, read in a process of its own: ``python -m tests.fuzz.child SECONDS READER SAMPLE PATH``.

The system ends it after so many seconds of CPU. It prints a JSON object: the verdict, the words of a refusal, the CPU
seconds and the memory that reading took.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.fuzz.memory import Memory
from tests.fuzz.reader import FaultError, outcome, place_bytes
from tests.helpers.shh_process import run_python

_ROOT = pathlib.Path(__file__).parents[2]
# Only for what waits without CPU: no machine takes so long for what is ended after some seconds of CPU.
_MOST_WAITING_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Read:
    """verdict: ``accepted``, ``refused`` or what must not be. words: why. seconds: of CPU. megabytes: at the peak."""

    verdict: str
    words: str
    seconds: float
    megabytes: float


def read_in_child(reader: str, sample: str, path: str, most_seconds: float) -> Read:
    """Reads the file at ``path`` as ``reader`` does, with the context of ``sample``."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        command = ("-m", "tests.fuzz.child", most_seconds, reader, sample, path)
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": errors}
        try:
            done = run_python(*command, cwd=_ROOT, timeout=_MOST_WAITING_SECONDS, **streams)
        except subprocess.TimeoutExpired:
            return Read("hang", "it waits and takes no CPU", 0, 0)
        out.seek(0)
        errors.seek(0)
        last_words = errors.read()[-1000:]
        if done.returncode == -signal.SIGXCPU:
            return Read("hang", f"more than {most_seconds} s of CPU", most_seconds, 0)
        if done.returncode:
            return Read("crash", f"{done.returncode}: {last_words}", 0, 0)
        return Read(**json.loads(out.read()))


def _reader(name: str) -> Any:
    """Only the module of the reader is imported. Of a log the rows are counted: the reader is measured alone."""
    from tests.fuzz.log_readers import count_rows, log_readers

    found = [one for one in log_readers() if one.name == name]
    if found:
        return dataclasses.replace(found[0], read=count_rows)
    from tests.fuzz.readers import all_readers

    return all_readers()[name]


def main() -> None:
    most_seconds, name, sample_name, path = sys.argv[1:]
    reader = _reader(name)
    sample = next(sample for sample in reader.samples() if sample.name == sample_name)
    warm = reader.place(os.path.dirname(path), "warm-up", sample, sample.data)
    time.sleep(reader.settle_seconds)
    outcome(reader, sample, warm)
    memory, began = Memory(), time.process_time()
    limit = math.ceil(began + float(most_seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    placed = pathlib.Path(path).read_bytes() if reader.place is place_bytes else path
    try:
        verdict, result = outcome(reader, sample, placed)
    except FaultError as error:
        verdict, result = "fault", str(error)
    words = result if verdict != "accepted" else ""
    seconds = time.process_time() - began
    print(json.dumps(dataclasses.asdict(Read(verdict, words, seconds, memory.grown() / 2**20))))


if __name__ == "__main__":
    main()
