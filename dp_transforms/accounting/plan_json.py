"""The JSON of a plan: written, fingerprinted and read. A file is hostile input: an error shows one line and little."""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from dp_transforms.accounting.plan_checks import FLOATS, as_float
from dp_transforms.checks import is_whole, shown

FORMAT_VERSION = 3
_WRITE_ONE = "Write one with `shh plan --output`."


def write_fields(fields: dict[str, Any]) -> str:
    """The fields of a plan as JSON text, with the format version and the fingerprint; `read_fields` reads it back."""
    return json.dumps(
        {"format_version": FORMAT_VERSION, **fields, "fingerprint": fingerprint_of(fields)}, indent=2, allow_nan=False
    )


def fingerprint_of(fields: dict[str, Any]) -> str:
    """Hex SHA-256 of the canonical JSON of a plan's fields: equal for equal plans only."""
    floats = {name: as_float(name, fields[name]) for name in FLOATS}
    canonical = {"format_version": FORMAT_VERSION, **fields, **floats}
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_fields(text: str | bytes, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a plan, exactly those of these names. Raises ValueError for any other text.

    The fingerprint finds changes that were made by accident, in an editor or on the way. It is not a signature: anybody
    can compute it again, and so change anything that the checks of a plan let pass.
    """
    fields = _parse(text)
    version = fields.pop("format_version", None)
    if not is_whole(version) or version != FORMAT_VERSION:
        raise ValueError(f"the plan must have format_version {FORMAT_VERSION}. {_WRITE_ONE}")
    wrong = set(fields) ^ {"fingerprint", *names}
    if wrong:
        shown_names = shown(", ".join(sorted(wrong)))[1:-1]
        raise ValueError(f"the plan has missing or unknown fields: {shown_names}. {_WRITE_ONE}")
    if fields.pop("fingerprint") != fingerprint_of(fields):
        raise ValueError(f"the plan was changed after `shh plan` wrote it: the fingerprint is wrong. {_WRITE_ONE}")
    return fields


def _parse(text: str | bytes) -> dict[str, Any]:
    """A JSON object, without what the standard parser lets pass: fields named twice, NaN, infinities."""
    try:
        fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except _RefusedJsonError as error:
        raise ValueError(f"the plan {error}. {_WRITE_ONE}") from None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"the plan is not JSON text as `shh plan` writes it. {_WRITE_ONE}")
    return fields


class _RefusedJsonError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = next(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
        raise _RefusedJsonError(f"has the field {shown(twice)} twice")
    return fields


def _refuse(name: str) -> Any:
    raise _RefusedJsonError("contains NaN or an infinity")
