"""Tables for notebooks. Whatever a cell contains is shown as text: markup, marks of direction and line ends too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dp_transforms.checks import on_one_line

_LONGEST = 80


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A caption, a line of heads if there are any, and rows, as HTML that loads nothing. All texts are escaped."""
    import html  # here, because every command loads this module

    parts = ["<table>", f"<caption>{html.escape(caption)}</caption>"]
    if head:
        parts.append("<thead><tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr></thead>")
    lines = ("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return "".join((*parts, "<tbody>", *lines, "</tbody></table>"))


def _cell(value: object) -> str:
    """Of a tuple each text on its own line. bdi: text that runs from right to left does not turn its neighbours."""
    import html

    if isinstance(value, tuple):
        return "<br>".join(map(_cell, value))
    if value is None:
        return ""
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return f"<bdi>{html.escape(on_one_line(text, most=_LONGEST))}</bdi>"
