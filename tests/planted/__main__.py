"""``python -m tests.planted [FILE.json ...]``: breaks the code in each way that a list names, and sees that its tests
fail.

A list beside this module has, for each fault, the file, the words that are there, those that stand there instead, and
what pytest is told to run. The words are put back. Exit code 1 if a fault is not found, or its words are not there.
"""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def is_found(fault: dict[str, str]) -> bool:
    path = ROOT / fault["file"]
    text = path.read_text()
    if text.count(fault["old"]) != 1:
        print(f"not there, or not once: {fault['old']!r} in {fault['file']}")
        return False
    path.write_text(text.replace(fault["old"], fault["new"]))
    try:
        words = (sys.executable, "-m", "pytest", "-qx", "-n0", "-m", "not nightly", "-p", "no:cacheprovider")
        return subprocess.run([*words, *shlex.split(fault["test"])], cwd=ROOT, capture_output=True).returncode == 1
    finally:
        path.write_text(text)


def main() -> int:
    lists = [pathlib.Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.json"))
    missed = 0
    for fault in (fault for path in lists for fault in json.loads(path.read_text())):
        found = is_found(fault)
        missed += not found
        print("found " if found else "MISSED", fault["file"], repr(fault["old"][:60]), flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
