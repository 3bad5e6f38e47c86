"""Which engine runs a command: the options that choose it, in every command that has engines, and their rules.

A run whose ports other machines can reach is refused: Beam runs the code that they send, and needs no password.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import Any

import click

from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import ENGINE, Rule, opt, switch
from dp_transforms.engines.engine_process import LOCAL as LOCAL_FLINK
from dp_transforms.engines.this_machine import addresses_of, is_loopback
from dp_transforms.errors import UserError

# Only in this process the noise key can be drawn and forgotten: no other process needs it.
IN_PROCESS = "in-process"
FLINK, PRISM = "flink", "prism"
HOST_AND_PORT = re.compile(r"[^\s:/]+:\d{1,5}")
_WHY = "Beam needs no password there and runs the code that it is sent, beside the noise key"
_ALLOW = "close it off by other means (docs/deploy.md) and give --allow-open-ports"
_REMEDIES = {
    PRISM: "Build one that listens only on this machine with: make prism; or",
    FLINK: "Build a job server that listens only on this machine with: make flink; or",
}


class EngineName(click.Choice):
    """The name of an engine that `shh` starts or asks. It says what to do for one that takes jobs of pipelines/*.py."""

    def __init__(self, *names: str, job: str) -> None:
        super().__init__(names)
        self._job = job

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "dataflow":
            raise UserError(
                f"--engine dataflow is not an engine of shh. Dataflow takes the job of python pipelines/{self._job}.py"
                " --runner=DataflowRunner ..., or a flex template of it (runners/dataflow/README.md)."
            )
        return super().convert(value, param, ctx)


def _seen_as(flink_master: str | None) -> str:
    return "HOST:PORT" if flink_master and HOST_AND_PORT.fullmatch(flink_master) else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """What is said of a Flink cluster, and of open ports."""

    flink_master: str | None = opt(
        ENGINE,
        "REST address of the Flink cluster. Default: [local], a Flink that is started here.",
        metavar="HOST:PORT",
        seen_as=_seen_as,
    )
    parallelism: int | None = opt(ENGINE, "Parallel parts on Flink. Default: 1.", type=click.IntRange(min=1))
    worker_pool: str | None = opt(
        ENGINE,
        "Address of Beam's Python workers for Flink, as Flink sees it. Default: workers that are started here.",
        metavar="HOST:PORT",
    )
    allow_open_ports: bool = switch(
        ENGINE,
        "Run even if other machines may reach a port that takes code: a port of the engine or "
        "of --worker-pool, which need no password. First close it off by other means (docs/deploy.md).",
    )
    detach: bool = switch(ENGINE, "Print the job's id and leave the job running, on a Flink cluster.")


ON_FLINK = "--engine flink | --flink-master"
ENGINE_RULES = (
    Rule("--flink-master", excludes="--engine prism | --engine in-process"),
    Rule(
        "--parallelism, --worker-pool, --worker-memory, --checkpoint-dir, --checkpoint-interval, --resume-from",
        needs=ON_FLINK,
    ),
    Rule(
        "--flink-master HOST:PORT",
        needs="--worker-pool",
        why="its task managers need Python workers that they can reach",
        remedy="Start Beam's worker pool beside them and name it with --worker-pool HOST:PORT (docs/deploy.md).",
    ),
    Rule("--detach", needs="--flink-master HOST:PORT", why="an engine that runs on after this command"),
    Rule(
        "--resume-from",
        needs="--run-id",
        why="it resumes a run",
        remedy="Give the run's name with --run-id (the run printed it).",
    ),
)


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """What runs the pipeline, and the options of ``--engine flink``. checkpoint_seconds: between two checkpoints.

    allow_open_ports: run even if other machines may reach a port that takes code. is_batch: the input ends, as that
    of a replay: Flink takes no checkpoints. runs_already: the cluster has a job of the run, which is watched.
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
    runs_already: bool = False

    @property
    def is_local(self) -> bool:
        """Whether all workers are processes of this machine, and end with this command."""
        return self.name != FLINK or self.flink_master == LOCAL_FLINK

    @property
    def reads_once(self) -> bool:
        """Whether a partition is read in one go, until it is idle: the engine cannot loop."""
        return self.name == IN_PROCESS

    @property
    def recovers(self) -> bool:
        """Whether a worker that died is replaced by one that continues its work."""
        return self.name == FLINK

    @property
    def goes_on(self) -> bool:
        """Whether the run was begun before."""
        return self.resume_from is not None or self.runs_already

    @property
    def can_go_on(self) -> bool:
        """Whether a run that was ended at once can be resumed."""
        return self.name == FLINK and (self.checkpoint_dir is not None or not self.is_local)


def choose_engine(
    name: str | None,
    options: ClusterOptions,
    *,
    usually: str,
    checkpoint_dir: str | None = None,
    checkpoint_seconds: int | None = None,
    resume_from: str | None = None,
) -> EngineChoice:
    """usually: the engine where neither it nor a Flink is named. Raises UserError for addresses that cannot be used."""
    engine = EngineChoice(
        name or (FLINK if options.flink_master else usually),
        flink_master=options.flink_master or LOCAL_FLINK,
        checkpoint_dir=checkpoint_dir,
        checkpoint_seconds=checkpoint_seconds or 10,
        parallelism=options.parallelism or 1,
        worker_pool=options.worker_pool,
        resume_from=resume_from,
        allow_open_ports=options.allow_open_ports,
    )
    if engine.flink_master != LOCAL_FLINK and not HOST_AND_PORT.fullmatch(engine.flink_master):
        raise UserError(f"--flink-master must be HOST:PORT or [local], got {engine.flink_master!r}.")
    if engine.worker_pool is not None and not HOST_AND_PORT.fullmatch(engine.worker_pool):
        raise UserError(f"--worker-pool must be HOST:PORT, got {engine.worker_pool!r}.")
    if engine.worker_pool is not None and not engine.allow_open_ports:
        check_worker_pool(engine.worker_pool, engine.flink_master)
    return engine


def check_ports(engine: str, *, allow: bool) -> None:
    """Raises UserError if other machines can now reach a process of this command.

    engine: the name of the engine. allow: print a warning on stderr, and go on.
    """
    from dp_transforms.engines.this_machine import open_ports

    found = open_ports()
    if allow:
        for port in found:
            tell(f"--allow-open-ports: other machines may reach {port}.")
        return
    if not found:
        return
    remedy = _REMEDIES.get(engine, "Leave out the options after --, or")
    raise UserError(f"--engine {engine} listens beyond this machine: {found[0]}. {_WHY}. {remedy} {_ALLOW}.")


def check_worker_pool(pool: str, flink_master: str) -> None:
    """Raises UserError if strangers can reach the pool, as far as this machine can know.

    pool, flink_master: "host:port", the latter also "[local]". Names are looked up here; a name that only the cluster
    knows is taken for a private one.
    """
    from dp_transforms.engines.this_machine import is_open_here

    addresses = addresses_of(pool.rpartition(":")[0])
    if any(ipaddress.ip_address(address).is_global for address in addresses):
        raise UserError(
            f"--worker-pool {pool} has an address of the internet. {_WHY}. Start the pool where task managers reach it"
            f" by localhost or on a private network, or {_ALLOW}."
        )
    port = int(pool.rpartition(":")[2])
    is_flink_here = flink_master == LOCAL_FLINK or _is_here(addresses_of(flink_master.rpartition(":")[0]))
    if is_flink_here and _is_here(addresses) and is_open_here(port):
        raise UserError(
            f"--worker-pool {pool} listens beyond this machine. {_WHY}. Start it with python -m"
            " dp_transforms.engines.on_loopback apache_beam.runners.worker.worker_pool_main"
            f" --service_port={port}, or {_ALLOW}."
        )


def _is_here(addresses: list[str]) -> bool:
    return bool(addresses) and all(is_loopback(address) for address in addresses)
