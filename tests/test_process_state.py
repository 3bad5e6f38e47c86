"""A test finds the logs of its process as pytest set them up, whatever commands others have run in it."""

from __future__ import annotations

import logging
import warnings

import pytest

from dp_transforms.cli.main import main
from tests.helpers.process_state import logs_as_before


def test_a_command_leaves_the_logs_of_the_next_test_alone(caplog: pytest.LogCaptureFixture) -> None:
    root, asked = logging.getLogger(), logging.getLogger("asked")
    before = list(root.handlers), root.level, list(warnings.filters)
    with logs_as_before():
        asked.isEnabledFor(logging.WARNING)
        with pytest.raises(SystemExit):
            main(["plan", "--epsilon", "nan"])
        logging.disable()
        assert not asked.isEnabledFor(logging.WARNING)
    assert (list(root.handlers), root.level, list(warnings.filters)) == before
    asked.warning("heard")
    assert "heard" in caplog.text
