"""What a run in parts publishes: an oracle in which each window is drawn for by the keys of its part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.fingerprints import part_fingerprint
from dp_transforms.runs.state_header import PartRecord
from tests.helpers.naming_oracle import oracle_names, reports_of
from tests.helpers.oracle import Event
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.small_runs import SECRET, settings_of


class TakenPart(NamedTuple):
    """record: of the state after it. carried: `StateFile.carried` of the state before it."""

    record: PartRecord
    carried: str

    @property
    def draws_as(self) -> str:
        if not self.record.first:
            return ""
        return part_fingerprint(self.record.first, self.record.end, self.record.input_fingerprint, self.carried)


class KeysOfParts:
    """Identities and choices are those of the run. of_parts: the first window after each part, and its keys."""

    def __init__(self, of_parts: Sequence[tuple[int, StreamKeys]]) -> None:
        self._of_parts = of_parts

    def __getattr__(self, name: str) -> Any:
        assert name in ("hash_users", "hash_items", "look_order", "widen_holders"), name
        return getattr(self._of_parts[0][1], name)

    def look_uniforms(self) -> Any:
        drawn = [(end, keys.look_uniforms()) for end, keys in self._of_parts]

        def of_window(windows: Any, hashes: Any, digests: Any) -> Any:
            (window,) = np.unique(windows).tolist()
            uniforms = next((uniforms for end, uniforms in drawn if window < end), drawn[-1][1])
            return uniforms(windows, hashes, digests)

        return of_window


def expected_of_parts(plan: Plan, log: Iterable[Event], run_id: str, parts: Sequence[TakenPart]) -> list[WindowReport]:
    """What the parts publish together, by the rule of a stream. The log may have more than they were given."""
    settings = settings_of(plan, run_id=run_id)
    ends = [(part.record.end, dataclasses.replace(settings, part=part.draws_as)) for part in parts]
    keys: Any = KeysOfParts([(end, of_part.stream_keys(SECRET)) for end, of_part in ends])
    return reports_of(oracle_names(stream_weights(log, settings, keys), settings, keys), settings)
