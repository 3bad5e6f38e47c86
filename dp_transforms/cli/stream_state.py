"""A stream with ``--state``: its reports appear window by window, and the new state after the last of them.

The intent stands in the state while the stream runs. The part ends at ``--until``, or at a stop: then before the first
window that a clock at the stop leaves open. Workers write the new state as a draft beside the old one. When the end
record, all reports and the draft are there, the draft takes the place of the state.

A stream that was ended hard *resumes*: from what its engine stored, or from the beginning of the part by the clock of
arrival. By that clock, if the log itself sets it, what a window holds is a function of the log alone
(docs/guarantee.md, "Streams and parts"), so the same log gives the same answers. The intent says where in its log the
part began, and a topic cannot lose records from there on unseen; of a folder each file is noted beside the state
before it is used (`TakenFiles`). So a log that has lost what was read of it is an error, and so is an end with fewer
reports than an earlier attempt has given. By times that producers or events have it is not, so then only its engine
can resume it, once something is published.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib

from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.state_part import PartFacts, StatePart, open_part
from dp_transforms.cli.stream_request import StreamRequest
from dp_transforms.errors import UserError
from dp_transforms.logs.streams.folder_files import TakenFiles
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports.report_writer import StreamContents, check_same_run
from dp_transforms.runs.records import StateError, VerdictKind
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_file import StateFile


class StreamPart(StatePart):
    """A part that is taken from a stream.

    found: what the output holds already. resumes_engine: whether it goes on from what its engine stored.
    """

    def __init__(self, facts: PartFacts, found: StreamContents, *, resumes_engine: bool) -> None:
        super().__init__(facts)
        _, reports, self.found_end = found
        self._has_reports = bool(reports)
        self._is_reported = self.found_end is not None and len(reports) == self.found_end.reports
        self._resumes_engine = resumes_engine

    @property
    def draft(self) -> pathlib.Path:
        """Where workers put the new state: a name that is known again after a restart."""
        path = pathlib.Path(os.path.abspath(self.facts.state_path))
        return path.with_name(f".{path.name}.next")

    @property
    def taken_files(self) -> TakenFiles:
        """Where the files of a folder are noted: beside the state, by the first window of the part."""
        path = pathlib.Path(os.path.abspath(self.facts.state_path))
        return TakenFiles(str(path.with_name(f".{path.name}.taken-{self.facts.record.first}")))

    @property
    def run_part(self) -> RunPart:
        """What workers need. A part that has an end record already ends there again. What a stream reads is not known
        before it ends, so its noise does not depend on it."""
        part = dataclasses.replace(super().run_part, draws_as="")
        if self.found_end is None or self._resumes_engine:
            return part
        return dataclasses.replace(part, end=self.found_end.windows)

    @property
    def is_published(self) -> bool:
        """Whether a process that was killed has left nothing to do but to put the state in its place."""
        return self._is_reported and self.found_end is not None and self.is_handed_over(self.found_end)

    def prepare(self) -> None:
        """Removes what processes left that were killed; but not what the engine, resumed, would not write again."""
        if self.found_end is None and not self._resumes_engine:
            self.draft.unlink(missing_ok=True)
        kept = os.path.basename(self.taken_files.path) if self.facts.how == VerdictKind.RESUMES else None
        of_parts = self.taken_files.path.rpartition("-")[0] + "-"
        for begun in (f"{self.draft}.", of_parts):  # then comes the process that wrote it, or the first window
            prefix = os.path.basename(begun)
            for name in os.listdir(self.draft.parent):
                if name.startswith(prefix) and name.removeprefix(prefix).isdigit() and name != kept:
                    self.draft.with_name(name).unlink(missing_ok=True)

    def is_handed_over(self, ended: RunEnded) -> bool:
        """Whether the new state is there. ended: the end record of the part."""
        if ended.windows == self.facts.record.first:
            return True  # nothing was closed, so the state stays as it is
        with contextlib.suppress(StateError):
            draft = StateFile(self.draft)
            draft.check_seal(self._sealing_key())
            return draft.header == self.begun.ended_before(ended.windows)
        return False

    def publish(self, ended: RunEnded | None) -> None:
        """Puts the new state in the place of the old one. ended: the end record; all reports are there.

        Raises UserError if one of them is missing; then the part stays begun.
        """
        facts = self.facts
        if ended is None or not self.is_handed_over(ended):
            raise UserError(
                f"the stream has ended and has not handed over its state, so its part of the run in {facts.state_path}"
                " is still begun. Give the same command again."
            )
        if ended.windows == facts.record.first:
            self._forget_taken()  # nothing was drawn, and what begins at this window next may be another part
            self._write_header(facts.header.with_intent(None))
            self.is_empty = True
            self.draft.unlink(missing_ok=True)
            return
        self._announce(self.draft)
        self._replace_state(self.draft)
        self._forget_taken()
        self.facts = dataclasses.replace(facts, record=dataclasses.replace(facts.record, end=ended.windows))

    def _forget_taken(self) -> None:
        pathlib.Path(self.taken_files.path).unlink(missing_ok=True)

    def source(self, source: StreamSource) -> StreamSource:
        """It, to be read from where the part was begun. Raises StreamError if it has lost what was there or was read,
        unless the engine goes on from what it stored."""
        beginning = self.facts.record.beginning
        if not isinstance(source, LogFolder):
            return source.begun_at(beginning)
        if self._resumes_engine:
            return dataclasses.replace(source.begun_at(beginning), taken=self.taken_files)
        self.taken_files.begin(is_new=not self._has_reports)
        return dataclasses.replace(source, taken=self.taken_files).begun_at(beginning)


def part_of_stream(request: StreamRequest, account: RunAccount) -> StreamPart:
    """Decides what this command is to its run, and reserves it. Raises UserError or StreamError."""
    assert request.state is not None
    source = request.source
    found: StreamContents = (None, [], None)

    def check(facts: PartFacts) -> PartFacts:
        nonlocal found
        if facts.how not in (VerdictKind.NEW, VerdictKind.CONTINUES, VerdictKind.RESUMES):
            return facts
        found = request.sink.before(request.run_id, is_fresh=False)
        _check_begin(request, facts, found)
        if facts.how == VerdictKind.RESUMES:
            return facts
        since = request.clock.first_arrival_micros(request.plan.schedule, facts.record.first)
        return dataclasses.replace(facts, record=dataclasses.replace(facts.record, beginning=source.beginning(since)))

    facts = open_part(
        request.plan,
        request.state,
        stream=request.stream,
        input_fingerprint=_fingerprint_of_input(request),
        account=account,
        check=check,
    )
    return StreamPart(facts, found, resumes_engine=request.engine.resume_from is not None)


def no_window_was_over(facts: PartFacts) -> str:
    """A sentence for the operator, of a part that has closed no window."""
    return f"No window was over, so nothing is published, and {facts.state_path} is as it was."


def _check_begin(request: StreamRequest, facts: PartFacts, found: StreamContents) -> None:
    """Raises UserError if the output is another part's, or the part cannot be resumed."""
    header = found[0]
    if facts.how != VerdictKind.RESUMES:
        if request.engine.resume_from is not None:
            raise UserError(
                "--resume-from resumes a stream that was ended before it handed its state over, and the state has none."
                " Leave it out: the stream goes on from the state."
            )
        if header is not None and (found[1:] != ([], None) or header.run_id != request.run_id):
            raise UserError(
                f"--output holds another part of run {header.run_id!r}. Each part that is a stream has an --output of"
                " its own: name another one."
            )
        return
    if header is None:
        raise UserError(
            f"--output is not the one with which a part of the run in {facts.state_path} was begun: that has a header"
            " of the run, and may have answers that must not be given twice. Bring it back to where it was."
        )
    check_same_run("--output", header, request.header)
    is_empty = found[1:] == ([], None)
    if not is_empty and not request.log_decides and request.engine.resume_from is None:
        raise UserError(
            f"a stream of the run in {facts.state_path} was ended before it handed its state over. By --clock event or"
            " --producer-times what its windows hold depends on when they were closed, so only its engine can resume"
            " it: with --resume-from SAVEPOINT, on Flink. Without one this run cannot go on; a new one needs another"
            " state file, and costs its full price."
        )


def _fingerprint_of_input(request: StreamRequest) -> str:
    """Of what decides which records there are, which events they hold and which of them count. The records are still to
    come."""
    source = request.source
    parts = [source.fingerprint(), dataclasses.asdict(request.clock)]
    if isinstance(source, LogFolder):
        parts.append(os.path.realpath(source.path))
    return hashlib.sha256(json.dumps(["stream", *parts], sort_keys=True).encode()).hexdigest()
