"""The JSON of a plan file: hostile input, of which an error shows one line and little."""

from __future__ import annotations

import collections
import json
from typing import Any

from dp_transforms.checks import shown

WRITE_ONE = "Write one with `shh plan --output`."


def parse_plan(text: str | bytes) -> dict[str, Any]:
    """A JSON object, without what the standard parser lets pass: fields named twice, NaN, infinities."""
    try:
        fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except _RefusedJsonError as error:
        raise ValueError(f"the plan {error}. {WRITE_ONE}") from None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"the plan is not JSON text as `shh plan` writes it. {WRITE_ONE}")
    return fields


class _RefusedJsonError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = next(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
        raise _RefusedJsonError(f"names {shown(twice)} twice")
    return fields


def _refuse(name: str) -> Any:
    raise _RefusedJsonError("holds NaN or an infinity")
