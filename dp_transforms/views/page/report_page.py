"""A report as a page for the browser that loads nothing and sends nothing (``shh show --html``)."""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
import json
import pathlib
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dp_transforms.checks import exact
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule
from dp_transforms.reports import ReportHeader
from dp_transforms.views.page.promise import (
    Budget,
    budget_of,
    chance,
    in_three_sentences,
    may_be_done,
    must_not_be_concluded,
    not_covered,
    one_in,
)
from dp_transforms.views.page.report_columns import ReportColumns, report_columns
from dp_transforms.views.plan_tables import plan_lines
from dp_transforms.views.plan_words import CONTRIBUTIONS, FOLLOWED, FOUND, NEW, found_from, in_a_sentence
from dp_transforms.views.report_words import NOT_STATED, counted, escape_text, length_text, local_text, shown_text

# HTML out of values: everything is escaped, and a document names by hash what its browser may run.

FOLDER = pathlib.Path(__file__).parent


def escaped(text: str) -> str:
    return html.escape(text, quote=True)


def listed(sentences: Iterable[str], tag: str = "ul") -> str:
    return f"<{tag}>{''.join(f'<li>{escaped(sentence)}</li>' for sentence in sentences)}</{tag}>"


def defined(lines: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>' for name, value in lines)}</dl>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column heads its rows; the others hold numbers."""
    top = "".join(f'<th scope="col"{_number if place else ""}>{escaped(cell)}</th>' for place, cell in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{escaped(row[0])}</th>'
        + "".join(f"<td{_number}>{escaped(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<table><caption class="note">{escaped(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody>'
        "</table>"
    )


_number = ' class="number"'


def data_block(value: Any) -> str:
    """JSON for a script element that no browser runs. No sign of it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def document(template: str, style: str, scripts: Sequence[str], parts: Mapping[str, str]) -> str:
    """A whole document that loads nothing and runs these scripts alone.

    template: name of a file in assets, with what comes after head.html: `$scripts` and the names of `parts`, which are
        HTML; `title` is one of them.
    style, scripts: texts of ours; the policy names their hashes, so nothing else runs, whatever a report contains.
    """
    policy = ["default-src 'none'", f"style-src {_hash(style)}", "base-uri 'none'", "form-action 'none'"]
    if scripts:
        policy.insert(1, f"script-src {' '.join(map(_hash, scripts))}")
    whole = string.Template(asset("head.html") + asset(template))
    return whole.substitute(
        policy="; ".join(policy),
        style=f"<style>{style}</style>",
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        **parts,
    )


def asset(name: str) -> str:
    return (FOLDER / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


MOST_BYTES = 32 << 20
_SCRIPTS = ("columns.js", "strips.js", "page.js")
_MADE = (
    "Made by <code>shh</code> from released values and the plan alone. This file loads nothing from elsewhere, and"
    " sends nothing."
)
_UNNAMED = "events"  # what a stream is called without --stream
_RHYTHMS = {"1h": "hour by hour", "1d": "day by day", "1w": "week by week", "1m": "minute by minute"}
_PUBLISHED = {
    "contributions": "names of items that many users have, with sizes: at least so many users",
    "hits": "names of items that many users have; near the threshold with a noisy number of users",
    "hits with counts": "names of items that many users have, with noisy numbers of users",
    "hits, noise as printed": "names of items that many users have",
}


def report_page(
    header: ReportHeader,
    reports: Sequence[WindowReport],
    zone: datetime.tzinfo,
    titles: Mapping[str, str] | None = None,
    state: str = "",
    title: str = "",
    *,
    goes_on: bool = False,
) -> str:
    """The page as HTML: a function of what was released, of the header and of what the caller declares.

    titles: label -> what a person calls it. state: a sentence on whether the run has ended. title: "" for one that
    tells the stream and its windows. goes_on: the page opens at the latest window, and a browser that shows that loads
    the page again each minute. Raises UserError for a report that is too large for a page.
    """
    plan = header.checked_plan()
    columns, budget = report_columns(reports, plan, titles), budget_of(plan, reports)
    signs = ["★ new"] if columns.rule.least_change is None else ["★ new", "▲ rising", "▼ falling"]
    data = {
        "columns": columns.as_json(),
        "zone": str(zone),
        "strength": _strength_title(state.text for state in columns.states),
        "goes_on": goes_on,
    }
    page = document(
        "page.html",
        asset("page.css"),
        [asset(name) for name in _SCRIPTS],
        {
            "title": escaped(escape_text(title) or _title(header, plan)),
            "guarantee": escaped(escape_text(header.guarantee)),
            "guess": escaped(in_three_sentences(budget)[1]).replace(" %", "&nbsp;%") if budget else "",
            "rule": escaped(f"{', '.join(signs)}, gone: {columns.rule.in_words} {_sizes(columns)}"),
            "sections": _sections(header, budget, plan),
            "summary": escaped(_summary(header, plan, columns, zone, state)),
            "made": _MADE,
            "data": data_block(data),
        },
    )
    if len(page.encode()) > MOST_BYTES:
        raise UserError(
            f"the page would have more than {MOST_BYTES >> 20} MB, which no browser shows well. Use --last to show"
            " fewer windows."
        )
    return page


def _sizes(columns: ReportColumns) -> str:
    """The meaning of what stands before a number."""
    said = {"at least": "≥ N: at least N users.", "about": "≈ N: about N users, with noise."}
    said["not stated"] = f"Not stated: {NOT_STATED}."
    texts = [state.text for state in columns.states]
    return " ".join(meaning for word, meaning in said.items() if any(word in text for text in texts))


def _title(header: ReportHeader, plan: Plan | None) -> str:
    what = "what many users had"
    if plan is not None:
        length = length_text(plan.schedule.window_seconds * MICROS_PER_SECOND)
        what += f", {_RHYTHMS.get(length, f'in windows of {length}')}"
    return sentence_case(what) if header.stream == _UNNAMED else f"{shown_text(header.stream)}: {what}"


def _strength_title(said: Iterable[str]) -> str:
    """What the height of a bar is in the history of an item. said: of items, in words."""
    texts = " ".join(said)
    if "threshold" in texts:
        return "1: near, 2: far above"
    if "at least" in texts:
        return "users, at least"
    return "users, with noise" if "about" in texts else "level"


def _summary(header: ReportHeader, plan: Plan | None, columns: ReportColumns, zone: datetime.tzinfo, state: str) -> str:
    """The sentences below the title."""
    declared, windows = "", columns.windows
    if plan is not None:
        declared = f"The run has {counted(plan.schedule.horizon, 'window')}."
    if not windows.count:
        return f"No item was named. {declared} {state}".strip()
    ends = windows.ends[0] + (windows.count - 1) * windows.step if windows.step else windows.ends.max()
    start, end = (local_text(int(micros), zone) for micros in (windows.starts[0], ends))
    named = named_in_words(len(columns.labels), len(np.unique(columns.window)))
    return f"{named} from {start} to {end} ({zone}). {declared} {state}".strip()


def named_in_words(items: int, windows: int) -> str:
    """windows: those with a heavy item."""
    named = "1 item was named" if items == 1 else f"{items:,} items were named"
    return f"{named} in {counted(windows, 'window')}"


def _sections(header: ReportHeader, budget: Budget | None, plan: Plan | None) -> str:
    promised = listed(in_three_sentences(budget), "ol") if budget else "<p>The report does not state a budget.</p>"
    parts = [
        _section("promise", "What is promised to each person", promised),
        _section("unseen", "What would not have been seen", _unseen(plan)),
        _section(
            "reading",
            "How to read it",
            '<div class="columns">'
            f"<div><h3>You may</h3>{listed(may_be_done(plan))}</div>"
            f"<div><h3>You must not conclude</h3>{listed(must_not_be_concluded(plan))}</div>"
            f"<div><h3>What the promise does not cover</h3>{listed(not_covered(budget, plan))}</div></div>",
        ),
        _section("plan", "Plan and parameters", _plan(header, plan)),
    ]
    return "\n".join(parts)


def _section(name: str, title: str, content: str) -> str:
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escaped(title)}</h2>{content}</section>'


def _unseen(plan: Plan | None) -> str:
    """From how many users on an item is found, by how active they are."""
    if plan is None:
        return (
            "<p>This version of shh cannot read the plan of the report, so it cannot tell from how many users on an"
            " item is found.</p>"
        )
    in_short = f"<p>{escaped(sentence_case(in_a_sentence(plan)))}</p>"
    if plan.contributions is None:
        return in_short
    new, followed = "a new item", "a followed item (named lately)"
    if plan.rounds is not None:
        new, followed = "an item of one window alone", "an item named in its block of windows"
    found = found_from(plan, (each for each in CONTRIBUTIONS if each <= plan.paid_contributions.most_tests))
    head = ["contributions (window, item) of each of its users in the whole run", new, followed]
    caption = (
        "An item with fewer users in a window than this may be missing; with so many it is found with"
        f" {100 * FOUND:.0f} %."
    )
    rows = [[f"{each:,}", *(f"{row[each]:,} users" for row in found.values())] for each in found[NEW]]
    return in_short + table(caption, head[: 3 if FOLLOWED in found else 2], rows)


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plan(header: ReportHeader, plan: Plan | None) -> str:
    lines = [("stream", shown_text(header.stream)), ("run", shown_text(header.run_id))]
    if plan is not None:
        schedule = plan.schedule
        lines += [
            ("epsilon", exact(plan.epsilon)),
            ("delta", exact(plan.delta)),
            ("range (UTC)", _range(schedule)),
            ("windows", f"{schedule.horizon:,} of {_lengths(schedule)}"),
            *plan_lines(plan),
        ]
    whole = json.dumps(header.plan) if plan is None else plan.to_json()
    return f"{defined(lines)}<details><summary>The whole plan, as JSON</summary><pre>{escaped(whole)}</pre></details>"


def _range(schedule: WindowSchedule) -> str:
    start, end = (
        local_text(at * MICROS_PER_SECOND, datetime.UTC) for at in (schedule.start_seconds, schedule.end_seconds)
    )
    return f"{start} to {end}"


def _lengths(schedule: WindowSchedule) -> str:
    size, slide = (length_text(each * MICROS_PER_SECOND) for each in (schedule.window_seconds, schedule.slide_seconds))
    return f"{size}, one every {slide}"


def plan_facts(plan: Plan) -> list[tuple[str, str]]:
    """What an approval is about, name by name."""
    schedule = plan.schedule
    budget = budget_of(plan, ())
    assert budget is not None
    under_keys = f", under at most {plan.most_keys} keys" if plan.most_keys > 1 else ""
    facts = [
        ("epsilon", f"{exact(plan.epsilon)} for each user, over the whole run"),
        ("delta", f"{exact(plan.delta)} ({one_in(plan.delta)}) for each user, over the whole run"),
        ("a guess", f"whether a person is in the log is right with {chance(budget)} at most, from an even chance"),
        ("unit of privacy", f"one user id with all of its events in the run{under_keys}"),
        ("neighbours", "two logs of which one has one user more: adding or removing a user"),
        ("horizon", f"{schedule.horizon:,} windows of {_lengths(schedule)}"),
        ("range (UTC)", f"{_range(schedule)}, the end excluded"),
        ("what is published", f"{_PUBLISHED[plan.charge_in_words]} (users pay for {plan.charge_in_words})"),
        ("declared bounds", f"at most {plan.max_users:,} users and {plan.max_items:,} items"),
    ]
    if plan.public_items is not None:
        facts.append(
            ("public items", f"{plan.public_items.size:,}, by a list; SHA-256 {plan.public_items.fingerprint[:16]}…")
        )
    if plan.contributions is not None:
        error = one_in(plan.contributions.size_error)
        least = plan.contributions.least_users
        each = "" if least is None else f"each item states at least {least:,} users; "
        facts.append(("stated sizes", f"{each}one or more is too large with a probability of at most {error}"))
    return [*facts, ("fingerprint", plan.fingerprint)]
