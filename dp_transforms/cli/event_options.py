"""From the options of `options.field_options` to the fields of an event. Not in `options`: a plan needs no reader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dp_transforms.cli.plan_options import flag
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields

_FLAGS = {"user": "--user-field", "item": "--item-field", "time": "--time-field"}
_FLAGS |= {name: flag(name) for name in ("time_unit", "time_format", "time_zone", "csv_separator")}


def separator_of(options: Mapping[str, Any]) -> str | None:
    """The character of --csv-separator."""
    given: str | None = options["csv_separator"]
    return "\t" if given in ("tab", "\\t") else given


def reading_of(options: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """`EventFields.time_reading`, of options that may name no field yet. Raises UserError."""
    fields = event_fields({**options, "user_field": "user", "item_field": "item", "time_field": "time"})
    return fields.time_reading


def event_fields(options: Mapping[str, Any]) -> EventFields:
    """The fields that the options name. Raises UserError."""
    try:
        return EventFields(
            options["user_field"],
            options["item_field"],
            options["time_field"],
            options["time_unit"],
            csv_line_ends_in_cells=options["csv_line_ends_in_cells"],
            time_format=options["time_format"],
            time_zone=options["time_zone"],
            csv_separator=separator_of(options),
        )
    except ValueError as error:
        names, must, rest = str(error).partition(" must ")  # what follows may hold a name of the operator's own
        flags = re.sub(rf"\b({'|'.join(_FLAGS)})\b", lambda match: _FLAGS[match[1]], names)
        raise UserError(flags + must + rest) from None
