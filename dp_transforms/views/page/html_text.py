"""HTML out of values: everything is escaped, and a document names by hash what its browser may run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import pathlib
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
