"""Registers the schemas of the released types with Beam: a PCollection of `WindowReport` has one, and travels by it.

Importing this module is enough. In another process Beam decodes a row as a NamedTuple of its own with the same fields
(and any sequence as a list), so take fields by name or position, and do not test with isinstance.
"""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.monitoring.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.rejected_events import RejectedEvents


def register() -> None:
    """Makes RowCoder the coder of the released types and of rejected events. May be called again."""
    for row_type in (HeavyHitter, WindowReport, RunEnded, RejectedEvents):
        beam.coders.registry.register_coder(row_type, beam.coders.RowCoder)


register()
