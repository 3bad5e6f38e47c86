"""``shh plan --chart``: from how many users on an item is found, against the activity of those users."""

from __future__ import annotations

import numpy as np

from dp_transforms.plan.names_plan import NamesPlan
from dp_transforms.views.line_plot import Series, line_plot_svg
from dp_transforms.views.plan_comparison import FOUND, LOOKS, TITLES, FoundFrom

_POINTS = 13


def chart_looks(most_looks: int = LOOKS[-1]) -> list[int]:
    """The activities that are drawn: from 1 to at least a thousand, evenly by powers."""
    return sorted({round(looks) for looks in np.geomspace(1, max(LOOKS[-1], most_looks), _POINTS)})


def most_looks_of(plan: object) -> int:
    return plan.most_looks if isinstance(plan, NamesPlan) else LOOKS[-1]


def chart_svg(title: str, found: dict[str, FoundFrom]) -> str:
    """A whole SVG file. found: by plan, "" where there is only one; at most 8 lines in all."""
    series: Series = {
        f"{plan}: {TITLES[method]}" if plan else TITLES[method]: _points(row)
        for plan, methods in found.items()
        for method, row in methods.items()
    }
    return line_plot_svg(
        title,
        "pairs (window, item) of each holder in the run",
        f"users from which an item is found with {FOUND:.0%}",
        series,
        log_x=True,
        log_y=True,
    )


def _points(row: dict[int, int]) -> list[tuple[float, float]]:
    return [(float(looks), float(users)) for looks, users in row.items()]
