"""Where a replay runs: in this process or on Flink. The options that say so, and their rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import click

from dp_transforms.cli.engine_choice import (
    ALLOW_OPEN_PORTS,
    FLINK,
    FLINK_MASTER,
    IN_PROCESS,
    PARALLELISM,
    WORKER_POOL,
    EngineChoice,
    EngineName,
    choose_engine,
)
from dp_transforms.cli.options import ENGINE, MAKE_A_KEY, AnyFunction, add_options, option
from dp_transforms.errors import UserError
from dp_transforms.stores.databases import is_database
from dp_transforms.stores.remote_files import full_name

USUAL_WORKER_MEGABYTES, LEAST_WORKER_MEGABYTES = 2000, 1500
_FOR_STREAMS = ("checkpoint_dir", "checkpoint_interval", "resume_from")
_PATHS = ("output", "dead_letter", "noise_key_file", "domain_file")

_ENGINE = option(
    ENGINE,
    "--engine",
    brief="in-process (default) or flink.",
    type=EngineName(IN_PROCESS, FLINK, job="replay_log"),
    help="What runs the replay. in-process: this machine alone. flink: a Flink cluster, or one that is started here; "
    "its workers read the log, --domain-file and --noise-key-file, which it needs, at the same paths, and one of them "
    "writes the report. Default: flink with --flink-master, else in-process.",
)
_DETACH = option(
    ENGINE,
    "--detach",
    is_flag=True,
    help="Print the job's id and leave the job running on the Flink cluster; the report appears when it is done.",
)
_WORKER_MEMORY = option(
    ENGINE,
    "--worker-memory",
    type=click.IntRange(LEAST_WORKER_MEGABYTES),
    metavar="MB",
    help="Memory that one Python worker of --engine flink may take, in MB: of a very large log it decides into how"
    f" many parts the work is cut. Default: {USUAL_WORKER_MEGABYTES}.",
)


def replay_engine_options(function: AnyFunction) -> AnyFunction:
    """Adds the options that choose an engine."""
    return add_options(
        function, _ENGINE, FLINK_MASTER, PARALLELISM, WORKER_POOL, ALLOW_OPEN_PORTS, _WORKER_MEMORY, _DETACH
    )


@dataclasses.dataclass(frozen=True)
class ClusterReplay:
    """A replay on Flink. beam_words: further options of Beam. detach: leave the job running.
    worker_megabytes: what one Python worker may take."""

    choice: EngineChoice
    beam_words: tuple[str, ...]
    detach: bool
    worker_megabytes: int = USUAL_WORKER_MEGABYTES


def choose_replay_engine(options: dict[str, Any], beam_words: Sequence[str]) -> ClusterReplay | None:
    """None for a replay in this process. Raises UserError for options that contradict or need each other."""
    name = options["engine"] or (FLINK if options["flink_master"] else IN_PROCESS)
    choice = choose_engine({**dict.fromkeys(_FOR_STREAMS), **options, "engine": name})
    if name == IN_PROCESS:
        if options["worker_memory"] is not None:
            raise UserError("--worker-memory belongs to --engine flink. Leave it out.")
        return None
    if options["noise_key_file"] is None:
        raise UserError(
            f"--engine flink has workers outside this process, which need one noise key: --noise-key-file FILE."
            f" {MAKE_A_KEY}"
        )
    if is_database(options["output"]):
        raise UserError(
            "--output as a database cannot be used with --engine flink. Write a file, and copy it: shh load REPORT"
            " --output URL."
        )
    if options["state"] is not None:
        raise UserError(
            "--state cannot be used with --engine flink: it was not tried. Take the parts in this process (leave"
            " --engine out), or the whole range there without --state."
        )
    if options["detach"] and options["ledger"] is not None:
        raise UserError(
            "--detach cannot be used with --ledger: the ledger must hear how the run ended. Leave --detach out, or"
            " reserve the run by hand (shh ledger reserve)."
        )
    return ClusterReplay(
        dataclasses.replace(choice, is_batch=True),
        tuple(beam_words),
        options["detach"],
        options["worker_memory"] or USUAL_WORKER_MEGABYTES,
    )


def with_absolute_paths(logs: Sequence[str], options: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Copies: workers have another current folder. URLs of stores stay. Raises UrlError for any other URL."""
    changed = {name: full_name(options[name]) for name in _PATHS if options[name] is not None}
    return tuple(map(full_name, logs)), {**options, **changed}
