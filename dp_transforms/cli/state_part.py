"""A command with ``--state`` takes one part of a run, from the first look at the state to the new one in its place.

At most one answer exists for each window, and the same command repairs a run that was killed:

1. The state says where the part begins, and whether it may: `open_part`.
2. `RunAccount.reserve`. Then the intent goes into the state: from here on these windows may be published from this
   input alone. `RunAccount.start`: the part counts as drawn.
3. The pipeline draws. The new state is written as a draft.
4. The state and `RunAccount.publishing` say which state is to follow: from here on the report may be read.
5. The report is published, then the new state, without the intent. `RunAccount.finish`.

A part that was killed between 2 and 5 *resumes*: noise is a function of the key, the run id, the nonce in the intent,
the window, the item and who held it, so the same input gives the same bytes. A part that failed before 4 takes its
intent back where the log alone was the reason, also if it resumed: nobody has read anything of it. Afterwards the same
command finds that the part is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping

from dp_transforms.cli.options import LogError, user_errors
from dp_transforms.cli.output_file import is_taken, output_draft, publish_output, write_errors
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.shared_options import StateOptions
from dp_transforms.core.planned_run import RunPart, fresh_nonce, fresh_run_id
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.reports import read_report_file
from dp_transforms.runs.fingerprints import key_fingerprint, read_key_file, sealing_key
from dp_transforms.runs.judge import check_run_of_state, part_by_state
from dp_transforms.runs.records import VerdictKind
from dp_transforms.runs.state_file import StateFile, replace_state, write_state
from dp_transforms.runs.state_header import PartRecord, StateHeader
from dp_transforms.runs.stored_part import StoredPart
from dp_transforms.stores.local_files import publish, remove_dead_drafts
from dp_transforms.stores.remote_files import is_remote

_VERSION = importlib.metadata.version("shifting-heavy-hitters")


@dataclasses.dataclass(frozen=True)
class PartFacts:
    """What an account needs to know of a part.

    how: what it is to its run, by the state. record: its windows, its input and its output. header: of the state before
        it; of one that is done, after it.
    state_fingerprint: of that state. draws_as: as in `RunPart`. noise_key_file: of the run; another key is refused.
    """

    how: VerdictKind
    plan: Plan
    record: PartRecord
    header: StateHeader
    state_path: str
    state_fingerprint: str
    draws_as: str
    noise_key_file: str

    @property
    def drawn_from(self) -> str:
        """What a ledger holds the part to once it may have drawn: its input, and its nonce. So an older state cannot
        begin it a second time."""
        return f"{self.record.input_fingerprint} {self.draws_as}".rstrip()

    @property
    def start_micros(self) -> int:
        """The start of the first window, microseconds since 1970 UTC."""
        return self.plan.schedule.window_start_micros(self.record.first)

    @property
    def end_micros(self) -> int:
        """The end of the last window."""
        return self.plan.schedule.window_end_micros(self.record.end - 1)


class StatePart:
    """A part that may be taken from a log: its report and its new state appear together, after all is drawn. Use it
    while the state is held (`hold_state`)."""

    def __init__(self, facts: PartFacts) -> None:
        self.facts = facts
        self._account = RunAccount()
        self._publishes = False

    @property
    def run_part(self) -> RunPart:
        """What workers need."""
        facts, record = self.facts, self.facts.record
        path = os.path.abspath(facts.state_path)
        return StoredPart(
            record.first,
            record.end,
            facts.draws_as,
            state_path=path,
            state_fingerprint=facts.state_fingerprint,
        )

    @property
    def begun(self) -> StateHeader:
        """The header of the state while the part runs. Of a part that resumes it stands there already."""
        facts = self.facts
        if facts.how == VerdictKind.RESUMES:
            return facts.header
        return facts.header.with_intent(facts.record, _VERSION, facts.draws_as)

    @contextlib.contextmanager
    def account_of(self, account: RunAccount) -> Iterator[None]:
        """Writes the intent, and runs the block, in which the pipeline draws and the part is published."""
        facts, may_have_drawn = self.facts, False
        self._account = account
        try:
            if facts.how != VerdictKind.RESUMES:
                self._write_header(self.begun)
            account.start(facts)
            may_have_drawn = True
            yield
        except BaseException as error:
            if not self._publishes:
                # Where the failure may depend on the noise, another log must not be drawn for with the same noise.
                if may_have_drawn:
                    # A process that was killed may have published something of this part.
                    was_publishing = bool(facts.header.next_fingerprint) or account.was_publishing
                    forget = isinstance(error, LogError) and not was_publishing
                else:
                    forget = facts.how != VerdictKind.RESUMES and not account.resumes
                # The account first: of a part that it takes for drawn, the nonce must stay in the state.
                if account.fail(facts, forget=forget) and forget:
                    with contextlib.suppress(UserError):  # then it resumes
                        self._write_header(facts.header.with_intent(None))
            raise
        account.finish(self.facts, StateFile(facts.state_path).fingerprint)

    def find_done(self, block_output: str | None) -> None:
        """Removes the drafts that a process left which was killed after it had published. Raises UserError for blocks
        that are not there: they cannot be drawn again."""
        for path in filter(None, (self.facts.record.output, self.facts.state_path, block_output)):
            if not is_remote(path):
                remove_dead_drafts(pathlib.Path(path))
        if block_output is not None and not is_taken(block_output):
            raise UserError(
                f"{block_output} is not there, and cannot be had any more: this part is done. It was published without"
                " it, or the file was moved since. Leave --block-output out."
            )

    def has_published(self, output: str) -> bool:
        """Whether the process that was killed has: a report, or the list of bad rows, of which the same input has the
        same."""
        return self.facts.how == VerdictKind.RESUMES and is_taken(output)

    def publish(self, reports: Mapping[str, str], draft: str) -> None:
        """Gives the reports their names, then the new state. reports: finished drafts, by their outputs. draft: of the
        state. Raises UserError also if the noise key was exchanged, or the account cannot be told."""
        state = StateFile(draft)
        state.check_seal(self._sealing_key())
        self._write_header(self.begun.publishing(state.fingerprint))
        self._account.publishing(self.facts, state.fingerprint)
        self._publishes = True
        for output, report in reports.items():
            if not self.has_published(output):
                publish_output(report, output)
            elif not _are_same_reports(report, output):
                raise UserError(
                    f"{output} exists, and is not the report of this part. Move it away, and run the same command"
                    " again."
                )
        with _write_errors(self.facts.state_path):
            replace_state(draft, self.facts.state_path)

    def _sealing_key(self) -> bytes:
        """Raises UserError if the file holds another key than that of the run."""
        with user_errors(ValueError):
            return sealing_key(read_key_file(self.facts.noise_key_file, self.facts.header.key_fingerprint))

    def _write_header(self, header: StateHeader) -> None:
        state, key = StateFile(self.facts.state_path), self._sealing_key()
        state.check_seal(key)
        cells = ((row.kind, row.bucket, state.cell(row)) for row in state.rows)
        with _state_draft(self.facts.state_path) as draft:
            write_state(draft, header, cells, key)
            replace_state(draft, self.facts.state_path)


def _are_same_reports(draft: str, published: str) -> bool:
    (header, reports), (other_header, other_reports) = read_report_file(draft), read_report_file(published)
    return header == other_header and list(reports) == list(other_reports)


def open_part(
    plan: Plan,
    options: StateOptions,
    *,
    stream: str,
    input_fingerprint: str,
    account: RunAccount,
    check: Callable[[PartFacts], None],
) -> PartFacts:
    """Decides what this command is to its run, and reserves it. A state is made where there is none.

    input_fingerprint: hex SHA-256 of what is read. check: raises UserError if the part cannot be published.
    Raises UserError, with the remedy, for a state that does not fit, and for a part that must not be taken.
    """
    with user_errors(ValueError):
        secret = read_key_file(options.noise_key_file)
    fingerprint, key = key_fingerprint(secret), sealing_key(secret)
    is_new = not os.path.lexists(options.path)
    if is_new:
        _create(plan, options, stream, fingerprint, key)
    try:
        state = StateFile(options.path)
        _check_run(state, plan, options, stream, fingerprint)
        state.check_seal(key)
        if not is_new and not state.header.parts and state.header.intent is None:
            state = _named_anew(state, options, key)
        how, record = part_by_state(
            state.header,
            state.path,
            plan.schedule,
            end=end_of_part(plan.schedule, options.until_seconds),
            input_fingerprint=input_fingerprint,
            output=options.output,
            version=_VERSION,
        )
        # A first part needs none: its run has a name of its own (`_named_anew`).
        draws_as = fresh_nonce() if how == VerdictKind.CONTINUES else state.header.draws_as
        key_file = os.path.abspath(options.noise_key_file)
        facts = PartFacts(how, plan, record, state.header, state.path, state.fingerprint, draws_as, key_file)
        check(facts)
        account.reserve(facts)
    except BaseException as error:
        if is_new and (isinstance(error, Exception) or not account.is_kept):  # a stop may come when the run is charged
            os.unlink(options.path)
        raise
    return facts


def end_of_part(schedule: WindowSchedule, until_seconds: int | None) -> int:
    """The first window after the part. Raises UserError unless a window ends at ``until_seconds``."""
    if until_seconds is None or until_seconds == schedule.end_seconds:
        return schedule.horizon
    if not schedule.start_seconds < until_seconds < schedule.end_seconds:
        raise UserError(
            f"--until {_utc(until_seconds)} lies outside of the plan, {_utc(schedule.start_seconds)} .."
            f" {_utc(schedule.end_seconds)}. Use a time in it."
        )
    ended, rest = divmod(until_seconds - schedule.start_seconds, schedule.slide_seconds)
    if rest:
        before, after = (schedule.start_seconds + n * schedule.slide_seconds for n in (ended, ended + 1))
        near = [_utc(time) for time in (before, after) if schedule.start_seconds < time <= schedule.end_seconds]
        raise UserError(f"--until {_utc(until_seconds)} is not the end of a window. Use {' or '.join(near)}.")
    return ended


def part_is_done(facts: PartFacts) -> str:
    """A sentence for the operator, of a part that was finished before."""
    output = f" as {facts.record.output}" if facts.record in facts.header.parts else ""
    return (
        f"This part of the run, {format_utc(facts.start_micros)} .. {format_utc(facts.end_micros)}, is done: it was"
        f" published from the same log{output}. Nothing was done, and nothing was spent."
    )


def part_is_taken(facts: PartFacts) -> str:
    """The same of a part that has just been taken."""
    covered = f"This part of the run covers {format_utc(facts.start_micros)} .. {format_utc(facts.end_micros)}."
    closed, windows, rounds = facts.record.end, facts.plan.schedule.horizon, facts.plan.rounds
    if rounds is not None and facts.end_micros - facts.start_micros < rounds.block_seconds * MICROS_PER_SECOND:
        covered += " It is shorter than a block of its plan's rounds, which find little then: take longer parts."
    if closed == windows:
        return f"{covered} The run is at its end: all of its {windows:,} windows are closed."
    return (
        f"{covered} {closed:,} of the {windows:,} windows of the run are closed; the others cost nothing more. Keep"
        f" {facts.state_path} and the noise key: the next part needs both."
    )


def _named_anew(state: StateFile, options: StateOptions, key: bytes) -> StateFile:
    """A state before the first window, without a part that was begun. Was it kept from before, windows may have been
    drawn under its name: nobody but a ledger knows. So without one its run gets another name, and is a new run."""
    if options.population is not None or options.run_id is not None:
        _check_name(options)
        return state
    with _state_draft(state.path) as draft:
        write_state(draft, dataclasses.replace(state.header, run_id=fresh_run_id()), [], key)
        replace_state(draft, state.path)
    return StateFile(state.path)


def _check_name(options: StateOptions) -> None:
    """Raises UserError if a run would begin under a name of the operator's that no ledger knows."""
    if options.run_id is not None and options.population is None:
        raise UserError(
            "--run-id begins a run only with a ledger, which knows the run ids that were used. If one was used again"
            " with the same key on another log, both runs would draw the same noise, and their reports would show what"
            " changed. Leave --run-id out: a fresh one is drawn, and kept in the state."
        )


def _create(plan: Plan, options: StateOptions, stream: str, fingerprint: str, key: bytes) -> None:
    """A state before the first window, of a run with a fresh id."""
    _check_name(options)
    run_id = options.run_id or fresh_run_id()
    fields = options.user_field, options.item_field
    of_run = plan.to_json(), plan.fingerprint, stream, run_id, fingerprint, *fields
    header = StateHeader(*of_run, population=options.population or "")
    with _state_draft(options.path) as draft:
        write_state(draft, header, [], key)
        publish(draft, options.path)


def _check_run(state: StateFile, plan: Plan, options: StateOptions, stream: str, key: str) -> None:
    """Raises RunRefusedError unless the state is of this plan, stream, key and run id."""
    asked = {
        "plan_fingerprint": plan.fingerprint,
        "stream": stream,
        "key_fingerprint": key,
        "user_field": options.user_field,
        "item_field": options.item_field,
        "population": options.population or "",
        "run_id": options.run_id or state.header.run_id,
    }
    check_run_of_state(state.header, state.path, plan.schedule.horizon, asked)


def _utc(seconds: int) -> str:
    return format_utc(seconds * MICROS_PER_SECOND)


@contextlib.contextmanager
def _state_draft(path: str) -> Iterator[pathlib.Path]:
    """Where a state takes shape; the block gives it its name."""
    with output_draft(path) as folder, _write_errors(path):
        yield folder / "state"


def _write_errors(path: str) -> contextlib.AbstractContextManager[None]:
    return write_errors(path, f"{path} was just made by another process. Try again when that has ended.")
