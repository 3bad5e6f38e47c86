"""A disk that fills up while a command writes: one line that names the output, and nothing left behind.

The disk is a small one in memory that the test mounts for itself, in a namespace of its own.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.fuzz.log_samples import csv_samples

_BUDGET = ["--epsilon", "2", "--delta", "1e-9", "--window", "1h", "--start", "2017-10-01", "--end", "2017-10-03"]
_BUDGET += ["--charge", "hits"]
# Mounts a disk of 64 kB, leaves the space of the first argument on it, runs the rest, and says what is there.
_SCRIPT = """
set -e
mount -t tmpfs -o size=64k shh-full "$1"
head -c $((65536 - $2)) /dev/zero > "$1/ballast" 2>/dev/null || true
shift 2
set +e
"$@"
code=$?
ls -A "$DISK" >"$LISTING"
exit $code
"""


def _unshare(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["unshare", "-rm", *command], capture_output=True, text=True, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def _mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        made = _unshare("mount", "-t", "tmpfs", "-o", "size=64k", "shh-full", str(tmp_path_factory.mktemp("disk")))
    except FileNotFoundError:
        pytest.skip("this machine has no unshare")
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")


def _commands(folder: pathlib.Path) -> dict[str, list[str]]:
    log = folder / "log.csv"
    log.write_bytes(csv_samples()[0].data)
    return {"simulate": ["simulate", "--output"], "replay": ["replay", str(log), *_BUDGET, "--output"]}


_ENDINGS = {"simulate": "csv", "replay": "avro"}


@pytest.mark.usefixtures("_mounts")
@pytest.mark.parametrize(("name", "free"), [("simulate", 8192), ("replay", 0)])
def test_a_full_disk_is_told_in_one_line_that_names_the_output(name: str, free: int, tmp_path: pathlib.Path) -> None:
    disk, listing = tmp_path / "disk", tmp_path / "listing"
    disk.mkdir()
    output = disk / f"out.{_ENDINGS[name]}"
    command = [*_commands(tmp_path)[name], str(output)]
    done = _unshare(
        *("sh", "-c", _SCRIPT, "sh", str(disk), str(free)),
        *(sys.executable, "-m", "dp_transforms.cli.main", *command),
        env={**os.environ, "DISK": str(disk), "LISTING": str(listing)},
    )
    words = done.stderr.strip()
    assert done.returncode == 1, (done.stdout, words)
    assert len(words.splitlines()) == 1
    assert words.startswith("shh: ")
    assert str(output) in words
    assert os.strerror(28) in words, "No space left on device"
    assert listing.read_text().split() == ["ballast"]
