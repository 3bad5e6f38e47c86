"""What a noisy count leads to: the interface that the release modes share."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Release(NamedTuple):
    """What is published of one query. zone: None or the zone's name; noisy_count: None where it must not be published.

    charged: whether every active holder pays one hit.
    """

    zone: str | None
    noisy_count: int | None
    charged: bool


class ReleaseRule(Protocol):
    """Post-processing of one noisy count; ``None`` means that nothing is published ("bot")."""

    def __call__(self, noisy_count: int) -> Release | None: ...
