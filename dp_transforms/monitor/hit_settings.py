"""What the sequential monitor needs of a mode: settings of each mode whose users pay for hits have it."""

from __future__ import annotations

from typing import Protocol

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.mechanisms.release_rule import ReleaseRule
from dp_transforms.monitor.query_noise import QueryNoise
from dp_transforms.plan.window_schedule import WindowSchedule


class HitSettings(Protocol):
    """Plain numbers, and what follows from them. Names as in the plans.

    threshold: of items that are not known. known_threshold: of known ones; equal where items are not followed.
    forget_after: an item is known for so many windows after it was last named; 0 where items are not followed.
    domain_size: above 0 in a known domain, where all items are known for ever.
    hits_per_user: a user who pays for hits is excluded after so many of them.
    """

    @property
    def stream(self) -> str: ...
    @property
    def schedule(self) -> WindowSchedule: ...
    @property
    def threshold(self) -> int: ...
    @property
    def known_threshold(self) -> int: ...
    @property
    def forget_after(self) -> int: ...
    @property
    def domain_size(self) -> int: ...
    @property
    def hits_per_user(self) -> int: ...
    @property
    def epsilon_total(self) -> float: ...
    @property
    def delta(self) -> float: ...

    def stream_keys(self, secret: bytes) -> StreamKeys:
        """All keyed functions of the run."""
        ...

    def query_noise(self, keys: StreamKeys) -> QueryNoise:
        """What is added to the count, or the sum of weights, of an item in a window."""
        ...

    def release_rule(self, *, is_known: bool) -> ReleaseRule:
        """What is published of a noisy count, and whether it is a hit."""
        ...

    def most_hits(self, charged: int) -> int:
        """So many of a window's charged results can be of one user."""
        ...

    def epsilon_spent(self, hit_bound: int) -> float:
        """The running estimate, if no user can have paid more hits than this."""
        ...


def are_followed(settings: HitSettings) -> bool:
    """Whether items become known by being named; in a known domain all of them are."""
    return settings.forget_after > 0 and not settings.domain_size
