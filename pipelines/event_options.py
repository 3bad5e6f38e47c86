"""From the options of `options.field_options` to the fields of an event. Not in `options`: a plan needs no reader."""

from __future__ import annotations

from typing import Any

from dp_transforms.event_files import EventFields


def event_fields(options: dict[str, Any]) -> EventFields:
    """The fields that the options name."""
    return EventFields(
        options["user_field"],
        options["item_field"],
        options["time_field"],
        options["time_unit"],
        csv_line_ends_in_cells=options["csv_line_ends_in_cells"],
    )
