"""Drop: panes of a window -> the one that counts."""

from __future__ import annotations

from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming


def is_late(pane: PaneInfo) -> bool:
    """Whether a pane must be dropped: any pane after the first one, and a first one that is late.

    Another pane would be a release that is not accounted for. So would a late first pane, because a single user can
    decide whether there was one on time. Not all runners drop late data by themselves.
    """
    return bool(pane.index > 0 or pane.timing == PaneInfoTiming.LATE)
