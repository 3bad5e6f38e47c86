"""Reports that `shh show` is tested with, and how its table is drawn without the command."""

import dataclasses
import io
import unicodedata

from rich.console import Console

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.trends import trends
from dp_transforms.views.report_words import legend, windows_table
from tests.helpers.page_reports import header_of, hourly_plan

HOUR = 3_600_000_000
START = 1_506_826_800_000_000  # 2017-10-01T03:00:00Z
HEADER = ReportHeader("run-1", "news", "Each user's whole log is protected with ε = 2.", {"epsilon": 2.0})
HOSTILE = "[red]x[/red] \x1b]0;owned\x07\x1b[31m\r\x9b2J\u202eevil\u2028\x00:smile:"


def report(window, *heavy_hitters, stream="news", length=HOUR):
    start = START + window * HOUR
    return WindowReport(stream, start, start + length, list(heavy_hitters), 2.0, 1e-9, 0.01 * (window + 1))


LABELS = [
    report(0, HeavyHitter("iphone", ABOVE, None), HeavyHitter("the beatles", BETWEEN, 812)),
    report(5, HeavyHitter("android", ABOVE, None), length=36 * HOUR),
]
_PAID = dataclasses.replace(hourly_plan().paid_contributions, size_error=0.001)
NAMES_HEADER = header_of(dataclasses.replace(hourly_plan(), contributions=_PAID))
NAMES = [
    report(0, HeavyHitter("big", None, None, 3, 240), HeavyHitter("new", None, None, 1, 12))._replace(
        epsilon_spent=2.0
    ),
    report(1, HeavyHitter("big", None, None, 1, 0), HeavyHitter("old", None, None, 1, None))._replace(
        epsilon_spent=2.0
    ),
]


def rendered(reports, *, plan=None, **options):
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(windows_table(list(trends(plan, reports)), **options))
    return console.file.getvalue()


def legend_of(reports, plan=None):
    return legend(trends(plan, reports), plan)


def hostile_characters(text):
    return [character for character in text if unicodedata.category(character)[0] == "C" and character != "\n"] + [
        character for character in text if character in "\u2028\u2029"
    ]
