"""What the tests of `shh show` share."""

import pytest

from dp_transforms.reports.files import write_report_file
from tests.helpers.shh_here import said
from tests.helpers.shown_reports import HEADER


@pytest.fixture
def terminal(monkeypatch):
    """100 columns wide, whatever the environment says."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def show(tmp_path, terminal):
    """Runs ``shh show`` on a file of the reports; returns what it prints, its errors and its exit code."""

    def run(reports, *options, ending="avro", header=HEADER):
        path = tmp_path / f"report.{ending}"
        if reports is not None:
            path.unlink(missing_ok=True)
            write_report_file(path, header, reports)
        return said("show", path, *options)

    return run
