"""The page that ``shh serve`` shows: that of ``shh show --html``, which goes on as windows close."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Sequence

from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.reports import ReportHeader
from dp_transforms.views.page.html_text import ServedFile, asset, data_block, escaped, served_document
from dp_transforms.views.page.report_columns import ReportColumns, report_columns
from dp_transforms.views.page.report_page import (
    check_size,
    extent_of,
    page_data,
    page_parts,
    page_scripts,
    summary,
)

_MADE = (
    "Made by <code>shh serve</code> from released values and the plan alone. This page hears from its server as windows"
    " close, and from nobody else."
)
_LIVE = '<p class="live" id="live-state" role="status" data-well="no">Not connected yet.</p>'
_OPERATOR = """<aside class="operator" aria-labelledby="operator"><h2 id="operator">For the operator</h2>
<p class="note">Exact numbers of the engine, <strong>not covered by the guarantee</strong>: do not publish them.</p>
<div id="operator-numbers">Not heard of yet.</div></aside>"""


@functools.cache
def served_files() -> tuple[ServedFile, ...]:
    """The style and the scripts of the page, in the order in which they run. Their names change with their contents."""
    scripts = [*page_scripts(), *((name, asset(name)) for name in ("connection.js", "live.js"))]
    return tuple(ServedFile.of(name, content) for name, content in [("page.css", asset("page.css")), *scripts])


def live_page(
    header: ReportHeader,
    reports: Sequence[WindowReport],
    plan: ReleasePlan | None,
    zone: datetime.tzinfo,
    *,
    titles: Mapping[str, str],
    state: str,
    after: str,
    for_operator: bool,
) -> tuple[str, ReportColumns]:
    """The page, and what it shows. Raises UserError for more than a page can hold.

    after: what the page says to hear of all that came later. for_operator: with a place for numbers of the engine.
    """
    columns = report_columns(reports, plan, titles)
    style, *scripts = served_files()
    page = served_document(
        "page.html",
        style,
        scripts,
        {
            **page_parts(header, reports, plan, columns),
            "summary": escaped(summary(header, plan, extent_of(columns), zone, state)),
            "live": f"{_LIVE}\n{_OPERATOR}\n" if for_operator else f"{_LIVE}\n",
            "made": _MADE,
            "data": data_block({**page_data(columns, zone), "live": {"after": after}}),
        },
    )
    check_size(page)
    return page, columns
