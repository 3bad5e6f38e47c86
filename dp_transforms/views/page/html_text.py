"""HTML out of values: everything is escaped, and a document names by hash what its browser may run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import pathlib
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
    elements = [f"<script>{script}</script>" for script in scripts]
    return _filled(template, "; ".join(policy), f"<style>{style}</style>", elements, parts)


class ServedFile(NamedTuple):
    """A style or a script that a server has beside its page. path: holds the digest of its content."""

    path: str
    content: str

    @classmethod
    def of(cls, name: str, content: str) -> ServedFile:
        stem, _, ending = name.rpartition(".")
        return cls(f"assets/{stem}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.{ending}", content)

    @property
    def integrity(self) -> str:
        return _hash(self.content).strip("'")


SERVED_POLICY = "; ".join(
    ["default-src 'none'"]
    + [f"{kind}-src 'self'" for kind in ("script", "style", "connect")]
    + ["base-uri 'none'", "form-action 'none'"]
)


def served_document(template: str, style: ServedFile, scripts: Sequence[ServedFile], parts: Mapping[str, str]) -> str:
    """The same document for a server: it loads these files, from there alone, and hears from there what is new."""
    link = f'<link rel="stylesheet" href="{style.path}" integrity="{style.integrity}">'
    elements = [f'<script src="{each.path}" integrity="{each.integrity}"></script>' for each in scripts]
    return _filled(template, SERVED_POLICY, link, elements, parts)


def _filled(template: str, policy: str, style: str, scripts: Sequence[str], parts: Mapping[str, str]) -> str:
    whole = string.Template(asset("head.html") + asset(template))
    return whole.substitute(policy=policy, style=style, scripts="\n".join(scripts), **parts)


def asset(name: str) -> str:
    return (FOLDER / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
