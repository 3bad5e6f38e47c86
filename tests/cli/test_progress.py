"""On a terminal what takes long shows how far it is and how long it may take yet; elsewhere it stays silent."""

import os
import pty
import re

from tests.helpers import shh_process
from tests.helpers.shh_here import shh

BUDGET = "--start 2026-01-01 --end 2026-01-03 --window 1h --epsilon 2 --delta 1e-9"
DONE = r"[^\n]* 100%[^\n]* left 0:00:00"
READ, FOUND = f"reading, 40,000 rows{DONE}", f"finding heavy items{DONE}"
SHOWN = {
    "simulate --events 40000 --output log.parquet": (f"simulating{DONE}",),
    f"plan {BUDGET} --output plan.json": ("calibrating the plan",),
    f"replay log.parquet {BUDGET} --processes 1 --output 1.avro": (READ, FOUND),
    f"replay log.parquet {BUDGET} --processes 2 --rounds --output 2.avro": ("calibrating the plan", READ, FOUND),
    "audit --plan plan.json --rounds 1": (r"exact: [^\n]* \d+%[^\n]* left",),
}
SIGNS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def on_a_terminal(words, folder):
    """What a command that ends well shows on the terminal that its standard error is."""
    ours, theirs = pty.openpty()
    with shh_process.python("-m", "dp_transforms.cli.main", *words.split(), cwd=folder, stderr=theirs) as process:
        os.close(theirs)
        seen = b"".join(iter(lambda: _read(ours), b""))
        process.communicate()
    os.close(ours)
    text = SIGNS.sub("", seen.decode())
    assert process.returncode == 0, text
    return text


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody has its other end any more
        return b""


def test_what_takes_long_shows_how_long_on_a_terminal_and_nothing_elsewhere(tmp_path):
    for words, wanted in SHOWN.items():
        seen = on_a_terminal(words, tmp_path)
        for each in wanted:
            assert re.search(each, seen), (words, seen)
    # All bars are made in one place, and all spinners: these two commands have both.
    for words in (each for each in SHOWN if each.startswith("simulate") or "--processes 1" in each):
        said = shh(*words.replace("--output ", "--output again-").split(), cwd=tmp_path)
        assert said.returncode == 0, said.stderr
        for word in ("\x1b", " left", "reading", "simulating", "finding", "calibrating"):
            assert word not in said.stderr, said.stderr
