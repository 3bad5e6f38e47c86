"""Where a replay runs: in this process, on Flink or on Dataflow. The options that say so, and their rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import click

from dp_transforms.cli.engine_choice import EngineChoice, choose_engine
from dp_transforms.cli.engine_options import (
    ALLOW_OPEN_PORTS,
    FLINK_MASTER,
    NOISE_KEY_SECRET,
    PARALLELISM,
    WORKER_POOL,
)
from dp_transforms.cli.grouped_options import ENGINE, AnyFunction, add_options, option
from dp_transforms.cli.noise_key_secret import noise_key_secret
from dp_transforms.cli.options import MAKE_A_KEY
from dp_transforms.cli.plan_options import flag
from dp_transforms.cli.stream_options import DATAFLOW, FLINK, IN_PROCESS
from dp_transforms.errors import UserError
from dp_transforms.stores.databases import is_database
from dp_transforms.stores.remote_files import full_name, is_remote

USUAL_WORKER_MEGABYTES, LEAST_WORKER_MEGABYTES = 2000, 1500
_FOR_STREAMS = ("checkpoint_dir", "checkpoint_interval", "resume_from", "pubsub_subscription")
_PATHS = ("output", "dead_letter", "noise_key_file", "domain_file")

_ENGINE = option(
    ENGINE,
    "--engine",
    brief="in-process (default), flink or dataflow.",
    type=click.Choice((IN_PROCESS, FLINK, DATAFLOW)),
    help="What runs the replay. in-process: this machine alone. flink: a Flink cluster, or one that is started here; "
    "its workers read the log, --domain-file and --noise-key-file, which it needs, at the same paths, and one of them "
    "writes the report. dataflow: the same by URLs, with --noise-key-secret. Default: flink with --flink-master, else "
    "in-process.",
)
_DETACH = option(
    ENGINE,
    "--detach",
    is_flag=True,
    help="Print the job's id and leave the job running on the Flink cluster or on Dataflow; the report appears when it "
    "is done.",
)

_WORKER_MEMORY = option(
    ENGINE,
    "--worker-memory",
    type=click.IntRange(LEAST_WORKER_MEGABYTES),
    metavar="MB",
    help="Memory that one Python worker of --engine flink or dataflow may take, in MB: of a very large log it decides"
    f" into how many parts the work is cut. Default: {USUAL_WORKER_MEGABYTES}.",
)


def replay_engine_options(function: AnyFunction) -> AnyFunction:
    """Adds the options that choose an engine."""
    return add_options(
        function,
        _ENGINE,
        FLINK_MASTER,
        PARALLELISM,
        WORKER_POOL,
        ALLOW_OPEN_PORTS,
        _WORKER_MEMORY,
        NOISE_KEY_SECRET,
        _DETACH,
    )


@dataclasses.dataclass(frozen=True)
class ClusterReplay:
    """A replay on Flink or Dataflow. beam_words: further options of Beam. detach: leave the job running.
    worker_megabytes: what one Python worker may take."""

    choice: EngineChoice
    beam_words: tuple[str, ...]
    detach: bool
    worker_megabytes: int = USUAL_WORKER_MEGABYTES


def choose_replay_engine(
    logs: Sequence[str], options: dict[str, Any], beam_words: Sequence[str]
) -> ClusterReplay | None:
    """None for a replay in this process. Raises UserError for options that contradict or need each other."""
    name = options["engine"] or (FLINK if options["flink_master"] else IN_PROCESS)
    if options["detach"] and (name == IN_PROCESS or (name == FLINK and options["flink_master"] is None)):
        raise UserError(
            "--detach needs an engine that runs on after this command. Give --flink-master HOST:PORT or --engine"
            " dataflow, or leave --detach out."
        )
    choice = choose_engine({**dict.fromkeys(_FOR_STREAMS), **options, "engine": name})
    if options["noise_key_secret"] is not None and name != DATAFLOW:
        raise UserError("--noise-key-secret belongs to --engine dataflow. Give --noise-key-file FILE.")
    if name == IN_PROCESS:
        if options["worker_memory"] is not None:
            raise UserError("--worker-memory belongs to --engine flink and dataflow. Leave it out.")
        return None
    if name == DATAFLOW:
        _check_dataflow(logs, options)
    elif options["noise_key_file"] is None:
        raise UserError(
            f"--engine flink has workers outside this process, which need one noise key: --noise-key-file FILE."
            f" {MAKE_A_KEY}"
        )
    if is_database(options["output"]):
        raise UserError(
            f"--output as a database cannot be used with --engine {name}. Write a file, and copy it: shh load REPORT"
            " --output URL."
        )
    if options["state"] is not None:
        raise UserError(
            f"--state cannot be used with --engine {name}: it was not tried. Take the parts in this process (leave"
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


def _check_dataflow(logs: Sequence[str], options: dict[str, Any]) -> None:
    if options["noise_key_secret"] is None or options["noise_key_file"] is not None:
        raise UserError(
            "--engine dataflow has workers on other machines, which fetch one noise key: --noise-key-secret VERSION,"
            " and not --noise-key-file."
        )
    noise_key_secret(options["noise_key_secret"])
    if options["run_id"] is not None:
        raise UserError(
            "--run-id and --noise-key-secret exclude each other in a replay, as with --noise-key-file. Leave --run-id"
            " out: a fresh one is drawn."
        )
    if options["ledger"] is not None:
        raise UserError(
            "--ledger cannot be used with --engine dataflow: the fingerprint of a log needs the noise key, which only"
            " workers have. Reserve the run by hand (shh ledger reserve)."
        )
    named = {"LOG": logs, **{flag(name): [options[name]] for name in ("output", "dead_letter", "domain_file")}}
    for name, paths in named.items():
        for path in paths:
            if path is not None and not is_remote(path):
                raise UserError(
                    f"{name} must be a URL with --engine dataflow, whose workers share no disk, got {path}. Use"
                    " gs://BUCKET/NAME (docs/object_stores.md)."
                )


def with_absolute_paths(logs: Sequence[str], options: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Copies: workers have another current folder. URLs of stores stay. Raises UrlError for any other URL."""
    changed = {name: full_name(options[name]) for name in _PATHS if options[name] is not None}
    return tuple(map(full_name, logs)), {**options, **changed}
