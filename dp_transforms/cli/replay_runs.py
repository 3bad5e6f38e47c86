"""The runs of ``shh replay``: the whole range of a plan, or one part of it; here or on an engine. Loads Beam."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from rich.console import Console

from dp_transforms.beam.read_events import ReadProgress
from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.home_workers import read_ahead
from dp_transforms.cli.operator_log import WARNING, is_json, tell
from dp_transforms.cli.replay_engine import ClusterReplay
from dp_transforms.cli.replay_progress import show_progress
from dp_transforms.cli.replay_request import ReplayRequest, ReplaySummary
from dp_transforms.cli.replay_run import check_bad_fraction, nothing_found, run_replay
from dp_transforms.cli.replay_state import ReplayPart, check_outputs
from dp_transforms.cli.run_account import DONE, NEW, PartFacts, RunAccount
from dp_transforms.cli.state_options import StateOptions
from dp_transforms.cli.state_part import open_part, part_is_done, part_is_taken, secret_of_run, state_errors
from dp_transforms.engines.local import is_local, pipeline_options
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFileError, count_unless_inside, ending_of_log, find_log_chunks
from dp_transforms.runs.fingerprints import InputFingerprint, input_key
from dp_transforms.runs.state_file import hold_state
from dp_transforms.stores.remote_files import full_name, is_remote
from dp_transforms.workers import ProcessPool

if TYPE_CHECKING:
    from dp_transforms.cli.ledger_account import LedgerAccount


def run_whole(
    logs: tuple[str, ...],
    request: ReplayRequest,
    cluster: ClusterReplay | None,
    beam_words: Sequence[str],
    run_id: str | None,
    account: LedgerAccount | None,
    pool: ProcessPool | None,
) -> ReplaySummary | None:
    """All of a run at once, without a state. None if the job was left running.

    pool: has begun to read the log, unless there is an account.
    """
    where = cluster or pipeline_options(beam_words)
    if account is None:
        return _run(request, where, pool=pool)
    with state_errors():
        _check_range(request)
        path = request.noise_key_file
        log = _fingerprint_of_log(logs, request, None if path is None else input_key(secret_of_run(path)))
        verdict = account.reserve_whole(request.plan, request.stream, run_id, log.text)
        is_private = not is_remote(request.output) or (cluster is None and is_local(pipeline_options(beam_words)))
        with account.whole(is_private=is_private):
            request = dataclasses.replace(request, run_id=verdict.run_id)
            if pool is not None:
                read_ahead(pool, request)
            return _run(request, where, pool=pool)


def run_part(
    logs: tuple[str, ...],
    request: ReplayRequest,
    beam_words: Sequence[str],
    options: dict[str, Any],
    account: LedgerAccount | None,
) -> ReplaySummary | None:
    """One part of a run with a state; None if it was done before."""
    assert request.noise_key_file is not None
    path, run_account = os.path.abspath(options["state"]), account or RunAccount()

    def check(facts: PartFacts) -> PartFacts:
        facts = check_outputs(facts, request.output, request.dead_letter)
        if account is not None and facts.how == NEW:
            _check_range(request, is_part=True)
        return facts

    with state_errors(), hold_state(path):
        log = _fingerprint_of_log(logs, request, input_key(secret_of_run(request.noise_key_file)))
        facts = open_part(
            request.plan,
            StateOptions(
                path,
                request.noise_key_file,
                request.fields.user,
                request.fields.item,
                full_name(request.output),
                until_seconds=options["until"],
                run_id=options["run_id"],
                population=options["population"],
            ),
            stream=request.stream,
            input_fingerprint=log.text,
            account=run_account,
            check=check,
        )
        part = ReplayPart(facts, log)
        if part.facts.how == DONE:
            part.tidy()
            run_account.finish(part.facts, part.facts.state_fingerprint)
            tell(part_is_done(part.facts))
            return None
        request = dataclasses.replace(request, run_id=part.facts.header.run_id)
        with part.account_of(run_account):
            summary = _run(request, pipeline_options(beam_words), part)
    tell(part_is_taken(part.facts))
    return summary


def _check_range(request: ReplayRequest, *, is_part: bool = False) -> None:
    """Before anything is reserved. Raises NothingFoundError, or LogError if too many rows cannot be read.

    is_part: a log without any event is one of a quiet night, and only one with events of other years is not.
    """
    if request.allow_empty:
        return
    try:
        outside = count_unless_inside(request.chunks, request.fields, request.plan.schedule)
    except EventFileError as error:
        raise UserError(str(error)) from None
    if outside is not None:
        check_bad_fraction(request, *outside, has_run=False)
        if outside[0] or not is_part:
            raise nothing_found(request, *outside, has_run=False)


def _fingerprint_of_log(logs: tuple[str, ...], request: ReplayRequest, key: bytes | None = None) -> InputFingerprint:
    """key: `input_key` of the run. Raises UserError if the files were exchanged since they were listed: then the row
    groups that are read would not be those of the file that was fingerprinted."""
    fields = request.fields
    declared = (*fields.time_reading, fields.csv_separator)
    reading = (*fields.names, *(value or "" for value in declared), str(fields.csv_line_ends_in_cells))
    files = [(chunk.path, ending_of_log(chunk.path)) for chunk in request.chunks]
    stored = {chunk.path: chunk.stored for chunk in request.chunks if chunk.stored is not None}
    log = InputFingerprint(files, reading, key, stored)
    try:
        is_same = bool(log.text) and find_log_chunks(logs, fields) == request.chunks
    except EventFileError as error:
        raise UserError(str(error)) from None
    if not is_same:
        raise UserError("the log was changed while it was looked at. Replay files that nobody writes to any more.")
    return log


def _run(
    request: ReplayRequest,
    where: PipelineOptions | ClusterReplay,
    part: ReplayPart | None = None,
    pool: ProcessPool | None = None,
) -> ReplaySummary | None:
    """None if the job was left running."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if request.hint and is_json():
        tell(request.hint, WARNING)
    elif request.hint and console.is_terminal:  # else the error has the hint, if there is one
        console.print(request.hint, style="bold", markup=False)
    if isinstance(where, ClusterReplay):
        from dp_transforms.cli.cluster_replay import replay_on_cluster  # loads all engines

        return replay_on_cluster(request, where)
    progress = ReadProgress()
    # Unwinding lets Beam end its worker processes in order. Threads of this process need no such care.
    stopping = contextlib.nullcontext() if _in_this_process(where) else Unwinding()
    with stopping, show_progress(progress, sum(chunk.bytes for chunk in request.chunks)):
        return run_replay(request, where, progress, part, pool=pool)


def _in_this_process(beam_options: PipelineOptions) -> bool:
    mode = beam_options.view_as(DirectOptions).direct_running_mode
    return is_local(beam_options) and mode in (None, "in_memory", "multi_threading")
