"""Release: `ReleaseLog`, chunks of a log -> reports, by worker processes of this machine."""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.beam.assign_windows import ReadPairs
from dp_transforms.beam.name_heavy_hitters import NameHeavyHitters
from dp_transforms.beam.read_events import ReadProgress
from dp_transforms.beam.release_heavy_hitters import ReleaseOutput, ShiftingHeavyHitters
from dp_transforms.logs import EventFields
from dp_transforms.monitor.item_domain import DomainFile
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.workers import ProcessPool
from dp_transforms.workers.reading_step import reading_step


class ReleaseLog(ShiftingHeavyHitters):
    """PCollection of `JoinedChunks` -> the same as `ShiftingHeavyHitters` makes of the events of the log.

    The steps that need most time are done by the processes of ``pool``, in this process remains what is left. What they
    hand to each other does not pass through Beam, whose shuffle would copy it four times.

    noise_key: a `beam.Secret` of the key that the pool has. domain_file: of a plan with a known domain.
    """

    def __init__(
        self,
        plan: ReleasePlan,
        fields: EventFields,
        pool: ProcessPool,
        *,
        noise_key: beam.Secret,
        run_id: str,
        stream: str,
        shards: int | None,
        domain_file: str | None,
        progress: ReadProgress | None,
    ) -> None:
        super().__init__(plan, noise_key=noise_key, run_id=run_id, stream=stream, shards=shards, domain=domain_file)
        domain = None if domain_file is None else DomainFile(domain_file, plan.domain_size, plan.domain_fingerprint)
        self._step = reading_step(plan.schedule, plan.release, fields, shards, domain)
        self._pool = pool.token
        self._progress_token = None if progress is None else progress.token

    def _name(self, chunks: beam.PCollection, settings: NamingSettings, noise_key: beam.Secret) -> ReleaseOutput:
        packed, rejected = self._read(chunks)
        naming = NameHeavyHitters(settings, noise_key, self._shards, self._domain, self._pool)
        return ReleaseOutput(naming.name_packed(packed), rejected)

    def _monitor(self, chunks: beam.PCollection, settings: MonitorSettings, noise_key: beam.Secret) -> ReleaseOutput:
        packed, rejected = self._read(chunks)
        sharding = self._step.packing.sharding
        return ReleaseOutput(self._monitor_packed(packed, settings, noise_key, sharding, self._pool), rejected)

    def _read(self, chunks: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        packed, rejected = chunks | "ReadLog" >> ReadPairs(self._step, self._pool, self._progress_token)
        return packed, rejected
