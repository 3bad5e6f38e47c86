"""How the work of a run is cut into parts that can be done side by side."""

from __future__ import annotations

import dataclasses

from dp_transforms.plan.window_schedule import WindowSchedule

_BOUNDED_GROUPS = 128
_UNBOUNDED_SHARDS = 4
SHARDS_OF_RUN = 8  # of one slab with all windows


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How the work is cut. Results do not depend on it.

    windows_per_slab: a slab is that many consecutive windows, which travel together, so that cost does not grow with
        the number of windows.
    shards: number of groups of users in a slab, and also of groups of items.
    """

    windows_per_slab: int
    shards: int

    @classmethod
    def choose(cls, schedule: WindowSchedule, *, is_bounded: bool, shards: int | None) -> Sharding:
        """Bounded input: about 128 groups, and fewer shards for more slabs. A stream: one window per slab, 4 shards."""
        if shards is not None and (not isinstance(shards, int) or shards < 1):
            raise ValueError(f"shards must be a whole number >= 1, got {shards!r}. Leave it out for a good default.")
        if not is_bounded:
            return cls(1, shards or _UNBOUNDED_SHARDS)
        return cls.of_windows(schedule.horizon, shards)

    @classmethod
    def of_windows(cls, windows: int, shards: int | None = None) -> Sharding:
        """For bounded input that lies in so many windows."""
        slabs = min(windows, _BOUNDED_GROUPS)
        return cls(-(-windows // slabs), shards or max(1, min(16, _BOUNDED_GROUPS // slabs)))
