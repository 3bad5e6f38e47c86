"""Set up: settings and a secret -> what a DoFn uses on its worker: keyed functions, and the items of a known domain."""

from __future__ import annotations

from typing import Protocol

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions

from dp_transforms.beam.load_domain import DomainSource
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.domain_table import DomainTable

_MAY_BE_PRISM = ("SwitchingDirectRunner", "PrismRunner", "PortableRunner")  # the first is what "DirectRunner" names
_SPLIT_NO_BUNDLE = "prism_disable_sdf_split"


class KeyedSettings(Protocol):
    """Settings of one stream of one run, of any release mode."""

    def stream_keys(self, secret: bytes) -> StreamKeys: ...


class KeyedDoFn(beam.DoFn):
    """Holds the settings and, from ``setup()`` on, the keyed functions of the stream as ``self._keys``.

    domain: for steps that need the items of a known domain, which are then in ``self._domain``.
    A subclass for one release mode declares its own type of ``_settings``.
    """

    _settings: KeyedSettings

    def __init__(self, settings: KeyedSettings, noise_key: beam.Secret, domain: DomainSource | None = None) -> None:
        self._settings = settings
        self._noise_key = noise_key
        self._domain_source = domain
        self._keys: StreamKeys
        self._domain: DomainTable | None = None

    def setup(self) -> None:
        self._keys = self._settings.stream_keys(self._noise_key.get_secret_bytes())
        if self._domain_source is not None:
            self._domain = self._domain_source.table(self._keys)


def keep_bundles_whole(pipeline: beam.Pipeline) -> None:
    """Tells Prism to split no bundle: else two bundles may have one key at once, and charges in its state are lost
    (docs/engines.md). Other engines do not know the option."""
    if type(pipeline.runner).__name__ in _MAY_BE_PRISM:
        pipeline.options.view_as(DebugOptions).add_experiment(_SPLIT_NO_BUNDLE)
