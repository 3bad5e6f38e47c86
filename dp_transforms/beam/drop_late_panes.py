"""Verb: panes of a window -> the one that counts."""

from __future__ import annotations

from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming


def is_late(pane: PaneInfo) -> bool:
    """Whether a pane must be dropped: any but the one that its window is due, on time.

    A further pane would be a release that nobody accounted for. A late first one as well: whether there was one on time
    can depend on a single user. Not all runners drop late data by themselves.
    """
    return bool(pane.index > 0 or pane.timing == PaneInfoTiming.LATE)
