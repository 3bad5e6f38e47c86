"""What the DoFns of all keyed stages share: settings, and the key resolved where the work is done."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming

from dp_transforms.domain_source import DomainSource
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.domain_table import DomainTable
from dp_transforms.monitoring.settings import MonitorSettings


def is_late(pane: PaneInfo) -> bool:
    """Whether a pane must be dropped: any but the one that its window is due, on time.

    A further pane would be a release that nobody accounted for. A late first one as well: whether there was one on time
    can depend on a single user. Not all runners drop late data by themselves.
    """
    return bool(pane.index > 0 or pane.timing == PaneInfoTiming.LATE)


class KeyedStageDoFn(beam.DoFn):
    """Holds the settings and, from ``setup()`` on, the keyed functions of the stream as ``self._keys``.

    domain: for the stages that need the items of a known domain; then they are in ``self._domain``.
    """

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret, domain: DomainSource | None = None) -> None:
        self._settings = settings
        self._noise_key = noise_key
        self._domain_source = domain
        self._keys: StreamKeys
        self._domain: DomainTable | None = None

    def setup(self) -> None:
        self._keys = self._settings.stream_keys(self._noise_key.get_bytes())
        if self._domain_source is not None:
            self._domain = self._domain_source.table(self._keys)
