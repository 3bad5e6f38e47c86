"""Reports for people: a table for a terminal, labels as text, how a run ended.

Labels may be hostile: they reach a terminal or a page escaped, and never as markup.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.reports.trends import FALLING, NEW, RISING, Entry, Trend, TrendRule

_EPOCH = datetime.datetime(1970, 1, 1)
_MAX_LABEL = 80
# Letters, marks and symbols that cannot be seen: fillers, joiners, variation selectors, the empty Braille pattern.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# Without blanks and the signs that the table sets beside labels.
_PLAIN_LABEL = re.compile(r'(?!.*>=)[^\s"\\~●○≥★▲▼]+')
_UNITS = (("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
# They differ in shape, so nobody needs the colour.
_SYMBOLS = {ABOVE: ("●", "*"), BETWEEN: ("○", "="), None: ("", "")}
_CHANGES = {NEW: ("★", "!"), RISING: ("▲", "+"), FALLING: ("▼", "-")}
_ASCII_SIGNS = tuple(signs[1] for signs in (_SYMBOLS[ABOVE], _SYMBOLS[BETWEEN], *_CHANGES.values()))
_AT_LEAST = ("≥", ">=")
NOT_STATED = "many users, too few for a number that is safe to state"
_STYLES = {ABOVE: "bold green", BETWEEN: "yellow", None: "green"}
_LONGEST = 80
# What a page would show like another text. What is quoted begins with a quotation mark.
_AMBIGUOUS = re.compile(r'^"|^ | $|  ')


def local(micros: int, zone: datetime.tzinfo) -> datetime.datetime:
    """The local time without its zone. At the ends of the calendar, where a zone may leave it, UTC."""
    moment = _EPOCH + datetime.timedelta(microseconds=micros)
    try:
        return moment.replace(tzinfo=datetime.UTC).astimezone(zone).replace(tzinfo=None)
    except OverflowError:
        return moment


def local_text(micros: int, zone: datetime.tzinfo) -> str:
    """``2017-10-01 03:00``, with seconds only if there are any."""
    text = local(micros, zone).isoformat(sep=" ")
    return text.removesuffix(":00") if text.count(":") == 2 else text


def windows_table(
    found: Sequence[Trend],
    *,
    max_items: int | None = None,
    ascii_only: bool = False,
    zone: datetime.tzinfo = datetime.UTC,
    with_epsilon: bool | None = None,
    titles: Mapping[str, str] | None = None,
) -> Table:
    """One row per window, in the order given: start, length, heavy items, the largest first.

    Where it tells something also the running estimate of the epsilon spent (`tells_epsilon`).

    max_items: how many items of a window to show; the rest is counted.
    ascii_only: for a terminal without UTF-8 (`is_ascii_only`).
    zone: of the starts of windows.
    with_epsilon: whether to show the epsilon spent; None: where these windows differ in it, or are in a run that has
        not spent all.
    titles: label -> what a person calls it.
    """
    rows = [each.report for each in found]
    names = _names(titles or {})
    with_epsilon = tells_epsilon(rows) if with_epsilon is None else with_epsilon
    several_streams = len({report.stream for report in rows}) > 1
    # A Text and never a str, here and below: rich would read a str as markup.
    table = Table(box=rich.box.SIMPLE, pad_edge=False)
    if several_streams:
        table.add_column("stream", overflow="fold")
    table.add_column(f"start ({zone})", overflow="fold")
    table.add_column("length", overflow="fold")
    table.add_column("heavy items", overflow="fold")
    if with_epsilon:
        table.add_column("epsilon spent" if ascii_only else "ε spent", justify="right", overflow="fold")
    for report, entries, gone in found:
        cells: list[Text | str] = [
            local_text(report.window_start, zone),
            length_text(report.window_end - report.window_start),
            _items_text(entries[:max_items], len(entries), len(gone), names, ascii_only),
        ]
        if with_epsilon:
            cells.append(f"{report.epsilon_spent:.4g}")
        if several_streams:
            cells.insert(0, label_text(report.stream, ascii_only))
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def tells_epsilon(reports: Iterable[WindowReport]) -> bool:
    """Whether the epsilon spent up to each of these windows says more than that all of it may be spent.

    Where contributions are charged it never does: a user may have spent its budget in any window, and no report tells.
    """
    return any(report.epsilon_spent < report.epsilon_total for report in reports)


def legend(found: Iterable[Trend], plan: Plan | None, *, ascii_only: bool = False) -> str:
    """The meaning of the signs that occur in the table. plan: of the report; None if it cannot be read."""
    windows = list(found)
    rows = [each.report for each in windows]
    zones = {heavy_hitter.zone for report in rows for heavy_hitter in report.heavy_hitters}
    above, between = _SYMBOLS[ABOVE][ascii_only], _SYMBOLS[BETWEEN][ascii_only]
    changes = {entry.change for each in windows for entry in each.entries}
    signs = [f"{signs[ascii_only]} {change}" for change, signs in _CHANGES.items() if change in changes]
    parts = [f"{', '.join(signs)} {TrendRule.of(plan).in_words}"] if signs else []
    if ABOVE in zones:
        parts.append(f"{above} above: far over the threshold, no count.")
    if BETWEEN in zones:
        parts.append(f"{between} between: near the threshold.")
    if any(heavy_hitter.noisy_count is not None for report in rows for heavy_hitter in report.heavy_hitters):
        parts.append("~N: number of users, with noise.")
    if any(heavy_hitter.at_least_users for report in rows for heavy_hitter in report.heavy_hitters):
        parts.append(f"{_AT_LEAST[ascii_only]}N: at least N users; {_how_often_wrong(plan)}.")
    hitters = [hitter for report in rows for hitter in report.heavy_hitters]
    if any(hitter.at_least_users == 0 for hitter in hitters):
        parts.append(f"Without {_AT_LEAST[ascii_only]}N: {NOT_STATED}.")
    totals = ", ".join(sorted({f"{report.epsilon_total:.4g}" for report in rows}))
    epsilon = "epsilon" if ascii_only else "ε"
    if any(heavy_hitter.level is not None for report in rows for heavy_hitter in report.heavy_hitters):
        parts.append(f"{epsilon} spent: all of {totals} in every window. A user may have spent it; no report tells.")
    else:
        all_spent = "" if tells_epsilon(rows) else f"all of {totals} in each of these windows; a "
        parts.append(f"{epsilon} spent: {all_spent}running estimate, of {totals} for the whole run.")
    return " ".join(part for part in parts if part)


def is_ascii_only(console: Console) -> bool:
    """Whether the console can print only ASCII."""
    return not (console.encoding or "").lower().startswith("utf")


def escape_text(text: str, ascii_only: bool = False) -> str:
    """The text with control characters, invisible and direction-changing characters escaped."""
    return "".join(
        character if _is_plain(character) and (not ascii_only or character.isascii()) else _escape(character)
        for character in text
    )


def label_text(label: str, ascii_only: bool = False) -> str:
    """A label as one word: quoted if it contains blanks, cut if it is very long, escaped."""
    if len(label) > _MAX_LABEL:
        label = label[:_MAX_LABEL] + ("..." if ascii_only else "…")
    like_a_sign = ascii_only and label.startswith(_ASCII_SIGNS)
    if like_a_sign or not _PLAIN_LABEL.fullmatch(label) or unicodedata.category(label[0]).startswith("M"):
        label = '"' + label.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return escape_text(label, ascii_only)


def _is_plain(character: str) -> bool:
    category = unicodedata.category(character)
    return character == " " or (category[0] not in "CZ" and not _INVISIBLE.match(character))


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _names(titles: Mapping[str, str]) -> dict[str, str]:
    """Label -> title, with the label beside a title that several labels have."""
    often = collections.Counter(titles.values())
    return {label: title if often[title] == 1 else f"{title} ({label})" for label, title in titles.items() if title}


def _items_text(shown: Sequence[Entry], count: int, gone: int, names: Mapping[str, str], ascii_only: bool) -> Text:
    text = Text()
    for hitter, _, change in shown:
        if text:
            text.append("  ")
        sign = _CHANGES[change][ascii_only] if change in _CHANGES else ""
        name = label_text(names.get(hitter.item, hitter.item), ascii_only)
        text.append(
            f"{sign}{_SYMBOLS[hitter.zone][ascii_only]}{name}{_size_text(hitter, ascii_only)}", _STYLES[hitter.zone]
        )
    rest = [f"and {count - len(shown):,} more"] * (count > len(shown)) + [f"{gone:,} gone"] * bool(gone)
    text.append("".join(f"  {words}" for words in rest), "dim")
    return text


def _size_text(entry: HeavyHitter, ascii_only: bool) -> str:
    if entry.noisy_count is not None:
        return f"~{entry.noisy_count:,}"
    return f"{_AT_LEAST[ascii_only]}{entry.at_least_users:,}" if entry.at_least_users else ""


def _how_often_wrong(plan: Plan | None) -> str:
    """How often a size is wrong, rounded up."""
    if plan is None or plan.contributions is None:
        return "the report does not state how often that is wrong"
    upwards = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
    rounded = float(upwards.create_decimal(repr(plan.contributions.size_error)))
    return f"that any of the run's sizes is wrong has a probability of at most {rounded:.3g}"


def length_text(micros: int) -> str:
    """``1h``, ``90m``, ``7d``: in the largest unit that divides it."""
    seconds, rest = divmod(micros, 1_000_000)
    if rest:
        return f"{micros / 1_000_000}s"
    unit, size = next((unit, size) for unit, size in _UNITS if seconds % size == 0)
    return f"{seconds // size}{unit}"


def shown_text(text: str) -> str:
    """A text with blanks as it is, if nothing in it hides or misleads; else quoted and escaped as on a terminal.

    Two different texts of at most 80 characters never look alike. Longer ones are cut.
    """
    cut = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    if not cut or _AMBIGUOUS.search(cut) or escape_text(cut) != cut or _begins_with_mark(cut):
        return label_text(text)
    return cut


def _begins_with_mark(text: str) -> bool:
    return unicodedata.category(text[0]).startswith("M")


def counted(number: int, what: str) -> str:
    """``1 hit``, ``2 hits``."""
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def ended_words(ended: RunEnded, horizon: int | None) -> str:
    """horizon: so many windows the run has; None where its plan does not say."""
    if horizon is not None and ended.windows < horizon:
        return f"This part has ended: {ended.windows:,} of the run's {horizon:,} windows are closed. Others may follow."
    return f"The run has ended: all of its {ended.windows:,} windows are closed."
