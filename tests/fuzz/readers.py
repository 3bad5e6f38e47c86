"""All readers that are tried, by name, and how many cases of a campaign each one gets."""

from __future__ import annotations

import functools

from tests.fuzz.log_readers import log_readers
from tests.fuzz.option_readers import option_readers
from tests.fuzz.reader import Reader


@functools.cache
def all_readers() -> dict[str, Reader]:
    every = (log_readers(), option_readers())
    return {one.name: one for group in every for one in group}


def cases_by_reader(total: int) -> dict[str, int]:
    """Those that are quick get more; together at least ``total``."""
    weights = {name: 1 / (0.5 + reader.cost) for name, reader in all_readers().items()}
    share = total / sum(weights.values())
    return {name: int(weight * share) + 1 for name, weight in weights.items()}
