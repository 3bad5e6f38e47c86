"""Which engine runs a stream: the choice that the options of ``shh stream`` make, and the rules for these options."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from dp_transforms.cli.options import flag
from dp_transforms.cli.stream_options import DATAFLOW, FLINK, IN_PROCESS, JOB_SERVICE, PRISM
from dp_transforms.cli.stream_ports import check_worker_pool
from dp_transforms.engines.addresses import LOCAL as LOCAL_FLINK
from dp_transforms.errors import UserError

_FLINK_OPTIONS = (
    "flink_master",
    "checkpoint_dir",
    "checkpoint_interval",
    "parallelism",
    "worker_pool",
    "resume_from",
)
_HOST_AND_PORT = re.compile(r"[^\s:/]+:\d{1,5}")


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """What runs the pipeline, and the options of ``--engine flink``. checkpoint_seconds: between two checkpoints.

    allow_open_ports: run even if other machines may reach a port that takes code. is_batch: the input ends, as that
    of a replay: Flink takes no checkpoints.
    """

    name: str
    flink_master: str = LOCAL_FLINK
    checkpoint_dir: str | None = None
    checkpoint_seconds: int = 10
    parallelism: int = 1
    worker_pool: str | None = None
    resume_from: str | None = None
    allow_open_ports: bool = False
    is_batch: bool = False

    @property
    def is_local(self) -> bool:
        """Whether all workers are processes of this machine, and end with this command."""
        return self.name != DATAFLOW and not (self.name == FLINK and self.flink_master != LOCAL_FLINK)

    @property
    def reads_once(self) -> bool:
        """Whether a partition is read in one go, until it is idle: the engine cannot loop."""
        return self.name in (JOB_SERVICE, IN_PROCESS)

    @property
    def recovers(self) -> bool:
        """Whether a worker that died is replaced by one that continues its work."""
        return self.name in (FLINK, DATAFLOW)

    @property
    def can_go_on(self) -> bool:
        """Whether a run that was ended at once can be resumed."""
        return self.name == FLINK and (self.checkpoint_dir is not None or not self.is_local)


def choose_engine(options: dict[str, Any]) -> EngineChoice:
    """Raises UserError for options that contradict or need each other."""
    name = options["engine"]
    if name is None:
        name = FLINK if options["flink_master"] else DATAFLOW if options["pubsub_subscription"] else PRISM
    given = [flag(option) for option in _FLINK_OPTIONS if options[option] is not None]
    if given and name != FLINK:
        verb = "belongs" if len(given) == 1 else "belong"
        raise UserError(f"{', '.join(given)} {verb} to --engine flink, got --engine {name}. Leave it out.")
    engine = EngineChoice(
        name,
        flink_master=options["flink_master"] or LOCAL_FLINK,
        checkpoint_dir=options["checkpoint_dir"],
        checkpoint_seconds=options["checkpoint_interval"] or 10,
        parallelism=options["parallelism"] or 1,
        worker_pool=options["worker_pool"],
        resume_from=options["resume_from"],
        allow_open_ports=options["allow_open_ports"],
    )
    if engine.flink_master != LOCAL_FLINK and not _HOST_AND_PORT.fullmatch(engine.flink_master):
        raise UserError(f"--flink-master must be HOST:PORT or [local], got {engine.flink_master!r}.")
    if engine.worker_pool is not None and not _HOST_AND_PORT.fullmatch(engine.worker_pool):
        raise UserError(f"--worker-pool must be HOST:PORT, got {engine.worker_pool!r}.")
    if engine.worker_pool is not None and not engine.allow_open_ports:
        check_worker_pool(engine.worker_pool, engine.flink_master)
    if not engine.is_local and name == FLINK and engine.worker_pool is None:
        raise UserError(
            f"a Flink at {engine.flink_master} needs Python workers that it can reach. Start Beam's worker pool beside"
            " its task managers and name it with --worker-pool HOST:PORT (docs/deploy.md)."
        )
    if options["detach"] and engine.is_local:
        raise UserError(
            f"--detach needs an engine that runs on after this command, got --engine {name} on this machine."
            " Give --flink-master HOST:PORT or --engine dataflow, or leave --detach out."
        )
    if engine.resume_from is not None and options["run_id"] is None and options["state"] is None:
        raise UserError("--resume-from resumes a run: give its name with --run-id (the run printed it).")
    return engine
