"""A test finds the logs of its process as pytest set them up, whatever commands others have run in it."""

from __future__ import annotations

import logging
import pathlib
import subprocess
import sys

COMMAND_AND_LOG = """
import logging, warnings
from dp_transforms.cli import operator_log
from dp_transforms.cli.main import main

def test_one_runs_a_command():
    logging.getLogger("asked").isEnabledFor(logging.WARNING)
    try:
        main(["plan", "--epsilon", "nan", "--log-format", "json"])
    except SystemExit:
        pass
    logging.disable()
    assert not logging.getLogger("asked").isEnabledFor(logging.WARNING)

def test_two_reads_the_log(caplog):
    logging.getLogger("asked").warning("heard")
    assert "heard" in caplog.text
    assert logging.getLogger().level == logging.WARNING
    assert not operator_log.is_json()
"""


def test_a_command_leaves_the_logs_of_the_next_test_alone(tmp_path: pathlib.Path) -> None:
    test = tmp_path / "test_order.py"
    test.write_text(COMMAND_AND_LOG)
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.conftest",
        f"--rootdir={tmp_path}",
        "-c",
        "/dev/null",
        str(test),
    ]
    run = subprocess.run([sys.executable, "-m", "pytest", *words], capture_output=True, text=True)
    assert "2 passed" in run.stdout, run.stdout + run.stderr
    assert logging.getLogger().level == logging.WARNING
