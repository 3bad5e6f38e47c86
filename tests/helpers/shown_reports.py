"""Reports that `shh show` and pages are tested with."""

import dataclasses

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter
from tests.helpers.page_reports import header_of, hourly_plan
from tests.helpers.report_samples import HOUR, report

HOSTILE = "[red]x[/red] \x1b]0;owned\x07\x1b[31m\r\x9b2J\u202eevil\u2028\x00:smile:"
_LATE = report(5, HeavyHitter("android", ABOVE, None), spent=0.06)
LABELS = [
    report(0, HeavyHitter("iphone", ABOVE, None), HeavyHitter("the beatles", BETWEEN, 812), spent=0.01),
    _LATE._replace(window_end=_LATE.window_start + 36 * HOUR),
]
_PAID = dataclasses.replace(hourly_plan().paid_contributions, size_error=0.001)
NAMES_HEADER = header_of(dataclasses.replace(hourly_plan(), contributions=_PAID))
NAMES = [
    report(0, HeavyHitter("big", None, None, 3, 240), HeavyHitter("new", None, None, 1, 12), spent=2.0),
    report(1, HeavyHitter("big", None, None, 1, 0), HeavyHitter("old", None, None, 1, None), spent=2.0),
]
