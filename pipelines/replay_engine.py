"""Where a replay runs: in this process, on Flink or on Dataflow. The options that say so, and their rules."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from dp_transforms.pipelines.engine_choice import EngineChoice, choose_engine
from dp_transforms.pipelines.engine_options import (
    ALLOW_OPEN_PORTS,
    FLINK_MASTER,
    NOISE_KEY_SECRET,
    PARALLELISM,
    WORKER_POOL,
)
from dp_transforms.pipelines.noise_key_secret import noise_key_secret
from dp_transforms.pipelines.options import UserError
from dp_transforms.pipelines.plan_options import flag
from dp_transforms.pipelines.stream_options import DATAFLOW, FLINK, IN_PROCESS

_F = TypeVar("_F", bound=Callable[..., Any])
_FOR_STREAMS = ("checkpoint_dir", "checkpoint_interval", "resume_from", "pubsub_subscription")
_PATHS = ("output", "dead_letter", "noise_key_file", "domain_file")
_MAKE_A_KEY = "Make one with: (umask 077; head -c 32 /dev/urandom > noise.key)"

_ENGINE = click.option(
    "--engine",
    type=click.Choice((IN_PROCESS, FLINK, DATAFLOW)),
    help="What runs the replay. in-process: this machine alone. flink: a Flink cluster, or one that is started here; "
    "its workers read the log, --domain-file and --noise-key-file, which it needs, at the same paths, and one of them "
    "writes the report. dataflow: the same by URLs, with --noise-key-secret. Default: flink with --flink-master, else "
    "in-process.",
)
_DETACH = click.option(
    "--detach",
    is_flag=True,
    help="Print the job's id and leave the job running on the Flink cluster or on Dataflow; the report appears when it "
    "is done.",
)


def replay_engine_options(function: _F) -> _F:
    """Adds the options that choose an engine."""
    for option in reversed(
        (_ENGINE, FLINK_MASTER, PARALLELISM, WORKER_POOL, ALLOW_OPEN_PORTS, NOISE_KEY_SECRET, _DETACH)
    ):
        function = option(function)
    return function


@dataclasses.dataclass(frozen=True)
class ClusterReplay:
    """A replay on Flink or Dataflow. beam_words: further options of Beam. detach: leave the job running."""

    choice: EngineChoice
    beam_words: tuple[str, ...]
    detach: bool


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
        return None
    if name == DATAFLOW:
        _check_dataflow(logs, options)
    elif options["noise_key_file"] is None:
        raise UserError(
            f"--engine flink has workers outside this process, which need one noise key: --noise-key-file FILE."
            f" {_MAKE_A_KEY}"
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
    return ClusterReplay(dataclasses.replace(choice, is_batch=True), tuple(beam_words), options["detach"])


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
            if path is not None and "://" not in path:
                raise UserError(
                    f"{name} must be a URL with --engine dataflow, whose workers share no disk, got {path}. Use"
                    " gs://BUCKET/NAME (docs/object_stores.md)."
                )


def with_absolute_paths(logs: Sequence[str], options: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Copies: workers have another current folder. URLs stay."""
    changed = {name: _absolute(options[name]) for name in _PATHS if options[name] is not None}
    return tuple(map(_absolute, logs)), {**options, **changed}


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)
