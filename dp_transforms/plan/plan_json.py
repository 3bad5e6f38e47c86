"""The JSON of a plan: written, fingerprinted and read. A file is hostile input: an error shows one line and little."""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dp_transforms.checks import is_whole, shown
from dp_transforms.plan.plan_checks import as_float

FORMAT_VERSION = 3
_WRITE_ONE = "Write one with `shh plan --output`."


class PlanForm(NamedTuple):
    """What the JSON of one class of plans holds: the names of all fields, and which of them are floats."""

    names: tuple[str, ...]
    floats: tuple[str, ...]


def write_fields(fields: dict[str, Any], floats: Iterable[str]) -> str:
    """The fields of a plan as JSON text, with the format version and the fingerprint; `read_fields` reads it back.

    One line a field, and one each for the parts of an object. A list has one line.
    """
    whole = {"format_version": FORMAT_VERSION, **fields, "fingerprint": fingerprint_of(fields, floats)}
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {_written(value)}" for name, value in whole.items()) + "\n}"


def _written(value: Any) -> str:
    indent = 2 if isinstance(value, dict) else None
    return json.dumps(value, indent=indent, allow_nan=False).replace("\n", "\n  ")


def fingerprint_of(fields: dict[str, Any], floats: Iterable[str]) -> str:
    """Hex SHA-256 of the canonical JSON of a plan's fields: equal for equal plans only."""
    as_floats = {name: as_float(name, fields[name]) for name in floats}
    canonical = {"format_version": FORMAT_VERSION, **fields, **as_floats}
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_fields(text: str | bytes, form_of: Callable[[dict[str, Any]], PlanForm]) -> dict[str, Any]:
    """The fields of a plan, exactly those of its form. Raises ValueError for any other text.

    form_of: the form that goes with the fields, which are not checked yet; it may raise ValueError.

    The fingerprint finds changes that were made by accident, in an editor or on the way. It is not a signature: anybody
    can compute it again, and so change anything that the checks of a plan let pass.
    """
    fields = _parse(text)
    version = fields.pop("format_version", None)
    if not is_whole(version) or version != FORMAT_VERSION:
        raise ValueError(f"the plan must have format_version {FORMAT_VERSION}. {_WRITE_ONE}")
    form = form_of(fields)
    wrong = set(fields) ^ {"fingerprint", *form.names}
    if wrong:
        shown_names = shown(", ".join(sorted(wrong)))[1:-1]
        raise ValueError(f"the plan has missing or unknown fields: {shown_names}. {_WRITE_ONE}")
    if fields.pop("fingerprint") != fingerprint_of(fields, form.floats):
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
