"""Plans by the name of their charge, what users pay for: for the words of commands, of rows and of `replay`."""

from __future__ import annotations

import inspect
from typing import Any

from dp_transforms.checks import nearest, shown
from dp_transforms.plan.plan import CONTRIBUTIONS, HITS, Plan

CHARGES = (CONTRIBUTIONS, HITS)  # the first one by default


def plan_for(charge: str | None = None, **choices: Any) -> Plan:
    """`Plan.for_contributions` or `Plan.for_hits`, by the name of what users pay for. None stands for a default.

    Raises ValueError also for a choice that belongs to the other charge, and TypeError for one of none.
    """
    charge = CONTRIBUTIONS if charge is None else charge
    taken = choices_of(charge)
    given = {name: value for name, value in choices.items() if value is not None}
    for name in given.keys() - taken:
        other = next((other for other in CHARGES if name in choices_of(other)), None)
        if other is None:
            raise TypeError(f"a plan of {charge} has no argument {name!r}{nearest(name, taken)}")
        raise ValueError(f"{name} cannot be used with charge {charge!r}: it belongs to {other}. Leave it out.")
    return (Plan.for_contributions if charge == CONTRIBUTIONS else Plan.for_hits)(**given)


def choices_of(charge: str) -> frozenset[str]:
    """The arguments that a plan of this charge is made of. Raises ValueError for another name."""
    if not isinstance(charge, str) or charge not in CHARGES:
        raise ValueError(f"charge must be one of {', '.join(CHARGES)}, got {shown(charge)}.")
    return frozenset(inspect.signature(Plan.for_contributions if charge == CONTRIBUTIONS else Plan.for_hits).parameters)
