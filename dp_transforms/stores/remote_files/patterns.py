"""Which files a URL names: one file, all below a folder, or those that match a glob, as with local paths.

``*``, ``?`` and ``[...]`` match inside one part of a name, and at its beginning no dot. A part ``**`` stands for any
number of parts that begin with no dot. A folder that matches stands for all below it. Below a folder, parts that begin
with a dot or an underscore are hidden. A file whose name is the URL itself comes first: names may hold ``*``.

A glob lists all names that begin as it does, up to its first special character.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator

from dp_transforms.stores.remote_files.stored_file import FileStore, StoredFile, split_url

_SPECIAL = re.compile(r"[*?\[]")
_CLASS = re.compile(r"(!?)(\]?[^\]/]*)\]")  # after the bracket that opens it
_VISIBLE_BELOW = r"(?:/[^/._][^/]*)+"


def files_of_pattern(store: FileStore, source: str) -> Iterator[StoredFile]:
    """In the order of the bytes of their URLs, each once. A folder without files has none: stores know no folders."""
    if split_url(source).key and not source.endswith("/"):
        exact = store.look(source)
        if exact is not None:
            yield exact
            return
    head = source.rstrip("/")
    if glob.has_magic(split_url(source).key):
        special = _SPECIAL.search(head, len(head) - len(split_url(head).key))
        prefix, wanted = head[: special.start() if special else len(head)], glob_expression(head)
    else:
        prefix, wanted = f"{head}/", re.compile(re.escape(head) + _VISIBLE_BELOW)
    for file in store.list_below(prefix):
        if wanted.fullmatch(file.url):
            yield file


def glob_expression(pattern: str) -> re.Pattern[str]:
    """Of the URLs of all files that match, and of all visible ones below folders that match."""
    expression = ""
    for number, part in enumerate(pattern.split("/")):
        slash = "/" if number else ""
        if part == "**":
            expression += r"(?:/[^/.][^/]*)*"
        else:
            no_dot = r"(?!\.)" if part[:1] in ("*", "?", "[") else ""
            expression += slash + no_dot + _expression_of_part(part)
    return re.compile(rf"{expression}(?:{_VISIBLE_BELOW})?", re.DOTALL)


def _expression_of_part(part: str) -> str:
    """By the rules of fnmatch, whose own expressions match slashes too."""
    expression, at = "", 0
    while at < len(part):
        char, at = part[at], at + 1
        if char == "*":
            expression += "[^/]*"
        elif char == "?":
            expression += "[^/]"
        elif char == "[" and (found := _CLASS.match(part, at)):
            inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", found[2])
            expression += f"(?!/)[{'^' if found[1] else ''}{inside}]"
            at = found.end()
        else:
            expression += re.escape(char)
    return expression
