"""A real file system that is full: a ledger on it changes nothing, and goes on when there is space again."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

# Mounts a small disk in a namespace of its own; the helper fills it but for so many bytes.
_SCRIPT = """
set -e
mount -t tmpfs -o size=256k shh-full "$1"
"$3" -m tests.helpers.ledger_on_a_full_disk "$1" "$2"
"""


@pytest.fixture(scope="module")
def _mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "shh", str(tmp_path_factory.mktemp("disk"))]
    try:
        made = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("this machine has no unshare")
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")


@pytest.mark.usefixtures("_mounts")
@pytest.mark.parametrize(
    "free", [pytest.param(n, marks=[] if n == 0 else pytest.mark.nightly) for n in (0, 8192, 120_000)]
)
def test_a_full_disk_changes_nothing_of_a_ledger(free: int, tmp_path: pathlib.Path) -> None:
    words = ["unshare", "-rm", "sh", "-c", _SCRIPT, "sh", str(tmp_path), str(free), sys.executable]
    root = pathlib.Path(__file__).resolve().parents[2]
    done = subprocess.run(words, capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr
    refused, faults, runs, again = done.stdout.split(" | ")
    is_refused = free < 100_000
    assert ("nothing was changed" in refused) == is_refused, refused
    assert (faults, runs, again.strip()) == ("0", "1" if is_refused else "2", "new")
