"""The plan of a run that is declared by plain values, as in YAML: a file of `shh plan`, or a budget and windows.

Nothing is taken from the data.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from dp_transforms.checks import shown
from dp_transforms.plan.plan_checks import as_float
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.plan.window_schedule import WindowSchedule, parse_duration
from dp_transforms.stores.local_files import read_regular
from dp_transforms.stores.remote_files import is_remote, read_stored

_MOST_PLAN_BYTES = 1 << 20
_WAYS = "Give plan=PATH, a file of `shh plan --output`, or epsilon, delta, start, end and window."


def declared_plan(
    plan: str | os.PathLike[str] | None = None,
    *,
    epsilon: float | str | None = None,
    delta: float | str | None = None,
    start: str | int | datetime.date | None = None,
    end: str | int | datetime.date | None = None,
    window: str | int | None = None,
    slide: str | int | None = None,
    release: str | None = None,
) -> ReleasePlan:
    """The plan of a file, or the one that `ReleasePlan.calibrate` makes of a budget.

    plan: path of a plan as JSON text. Nothing else may be given beside it.
    epsilon, delta: numbers, or the text of numbers: ``1e-9`` is text to a reader of YAML.
    start, end: ISO 8601 text, seconds since 1970 UTC, or dates and times, to which readers of YAML turn such text. UTC
        unless they have a zone. window, slide: ``1h`` and the like, or seconds. slide defaults to window.

    Raises ValueError, in words that name the argument and the remedy.
    """
    budget = {"epsilon": epsilon, "delta": delta, "start": start, "end": end, "window": window}
    if plan is not None:
        beside = [name for name, value in {**budget, "slide": slide, "release": release}.items() if value is not None]
        if beside:
            raise ValueError(f"{', '.join(beside)} cannot be given beside plan, which has them. {_WAYS}")
        return _read(plan)
    missing = [name for name, value in budget.items() if value is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} must be given. {_WAYS}")
    length = _seconds("window", window)
    schedule = WindowSchedule.sliding(
        _moment("start", start), _moment("end", end), length, length if slide is None else _seconds("slide", slide)
    )
    return ReleasePlan.calibrate(
        epsilon=_number("epsilon", epsilon), delta=_number("delta", delta), schedule=schedule, release=release
    )


def _read(path: str | os.PathLike[str]) -> ReleasePlan:
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(f"plan must be a path, got {shown(path)}. {_WAYS}")
    name = os.fspath(path)
    try:
        text = (read_stored if is_remote(name) else read_regular)(name, _MOST_PLAN_BYTES)
    except OSError as error:
        raise ValueError(f"plan: {name} cannot be read: {error.strerror}. {_WAYS}") from None
    if len(text) > _MOST_PLAN_BYTES:
        raise ValueError(f"plan: {name} is not a plan: it has more than 1 MB. {_WAYS}")
    try:
        return ReleasePlan.from_json(text)
    except ValueError as error:
        raise ValueError(f"plan: {name}: {error}") from None


def _number(name: str, value: Any) -> float:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{name} must be a number, got {shown(value)}.") from None
    return as_float(name, value)


def _moment(name: str, value: Any) -> str | int:
    if isinstance(value, datetime.date):  # a datetime is one
        return value.isoformat()
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} must be an ISO 8601 time such as 2026-01-01T00:00:00Z, got {shown(value)}.")


def _seconds(name: str, value: Any) -> int:
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} must be a duration such as 1h, or whole seconds, got {shown(value)}.")
