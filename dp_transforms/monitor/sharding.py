"""How the work of a run is cut into parts that can be done side by side."""

from __future__ import annotations

import dataclasses

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
    def of_stream(cls, shards: int | None) -> Sharding:
        """One window a slab; 4 shards unless another number is given."""
        return cls(1, _checked(shards) or _UNBOUNDED_SHARDS)

    @classmethod
    def of_windows(cls, windows: int, shards: int | None = None) -> Sharding:
        """For bounded input that lies in so many windows: about 128 groups, and fewer shards for more slabs."""
        _checked(shards)
        slabs = min(windows, _BOUNDED_GROUPS)
        return cls(-(-windows // slabs), shards or max(1, min(16, _BOUNDED_GROUPS // slabs)))


def _checked(shards: int | None) -> int | None:
    if shards is not None and (not isinstance(shards, int) or shards < 1):
        raise ValueError(f"shards must be a whole number >= 1, got {shards!r}. Leave it out for a good default.")
    return shards
