"""Parameter types and errors that the subcommands share."""

from __future__ import annotations

import re

import click

from dp_transforms.window_schedule import parse_utc

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


TERMINATED = 143  # exit code of a process that SIGTERM ended


class UserError(Exception):
    """An expected failure: one line that says what, and the remedy. Never contains a cell of the data."""


class Duration(click.ParamType):
    """``90s``, ``15m``, ``1h``, ``1d``, ``1w``: whole seconds."""

    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d{1,9})\s*([smhdw])\s*", value)
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is no duration. Use a number and s, m, h, d or w, such as 1h.", param, ctx)
        return int(match[1]) * _SECONDS[match[2]]


class UtcTime(click.ParamType):
    """An ISO 8601 date or time, UTC unless it says otherwise: whole seconds since 1970 UTC."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_utc(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()
UTC_TIME = UtcTime()
