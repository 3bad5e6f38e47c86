"""What people are told of where a run stands."""

from __future__ import annotations

from dp_transforms.monitor.window_report import RunEnded


def ended_words(ended: RunEnded) -> str:
    return f"The run has ended: all of its {ended.windows:,} windows are closed."
