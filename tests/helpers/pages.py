"""A page of a report taken apart, without a browser and without the code that made it."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
from collections.abc import Mapping
from typing import Any


class Page(html.parser.HTMLParser):
    """tags, attributes, texts: of all elements. scripts, styles: contents. policy: of the page, by directive."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.data: Any = None
        self.policy: dict[str, list[str]] = {}
        self._open: list[str] = []
        self._is_data = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = {name: value or "" for name, value in attrs}
        self.attributes |= set(found)
        self.values += [(tag, name, value) for name, value in found.items()]
        if found.get("http-equiv") == "Content-Security-Policy":
            words = [part.split() for part in found["content"].split(";")]
            self.policy = {name: rest for name, *rest in words}
        self._is_data = found.get("type") == "application/json"
        if tag not in ("meta", "input", "link", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"{tag} is closed, and not open"

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "script" and self._is_data:
            self.data = json.loads(data)
        elif inside == "script":
            self.scripts.append(data)
        elif inside == "style":
            self.styles.append(data)
        elif data.strip():
            self.texts.append(data)


def policy_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def told(columns: Mapping[str, Any]) -> set[tuple[float, float, str, str]]:
    """What the columns of a page tell: (start, end of the window in milliseconds, label, what is said of it)."""
    windows, states = columns["windows"], {sign: place for place, sign in enumerate(columns["signs"])}
    found = set()
    for label, parts in zip(columns["labels"], columns["presence"], strict=True):
        window = 0
        for part in parts:
            if isinstance(part, int):
                window += part
                continue
            for sign in part:
                if windows["step"]:
                    span = (edge[0] + window * windows["step"] for edge in (windows["starts"], windows["ends"]))
                else:
                    span = (edge[window] for edge in (windows["starts"], windows["ends"]))
                found.add((*span, label, columns["texts"][states[sign]]))
                window += 1
    return found
