"""URLs of databases: which are known, and how errors show them."""

from __future__ import annotations

import os
import re

from dp_transforms.checks import on_one_line

POSTGRESQL, SQLITE = "postgresql", "sqlite"
_DATABASES = (POSTGRESQL, SQLITE, "duckdb")  # the last one is not written to: who asks for it is told what to do


def database_of(place: str | os.PathLike[str]) -> str | None:
    """``postgresql``, ``sqlite`` or ``duckdb``; None for a path, and for any other URL."""
    scheme, found, _ = os.fspath(place).partition("://")
    name = scheme.partition("+")[0]
    return name if found and name in _DATABASES else None


def is_database(place: str | os.PathLike[str]) -> bool:
    return database_of(place) is not None


def has_password(url: str) -> bool:
    """Whether the URL itself holds one."""
    return "***" in shown_url(url)


def shown_url(url: str) -> str:
    """The URL as an error shows it: without its password, and without its options, which may hold one."""
    hidden = re.sub(r"//([^:/@?]*):.*@", r"//\1:***@", url, flags=re.DOTALL)
    plain, _, options = hidden.partition("?")
    return on_one_line(f"{plain}?***" if "password" in options.lower() else plain)
