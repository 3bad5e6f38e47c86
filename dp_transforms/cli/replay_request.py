"""What a replay is asked for: its options and their rules, what they come to, and what it tells the operator."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import click

from dp_transforms.cli.options import (
    ADVANCED,
    BUDGET,
    ENGINE,
    INPUT,
    MAKE_A_KEY,
    OUTPUT,
    UTC_TIME,
    ParsedText,
    Rule,
    argument,
    nested,
    opt,
    switch,
)
from dp_transforms.cli.plan_options import PLAN_RULES, PlanOptions
from dp_transforms.cli.shared_options import (
    ACCOUNT_RULES,
    NAMED_WITH_KEY,
    AccountOptions,
    FieldOptions,
    StateOptions,
    ViewOptions,
    plan_file_option,
)
from dp_transforms.core.operator_counts import (
    CONTRIBUTIONS_UNPAID,
    EVENTS_OUTSIDE_DOMAIN,
    EVENTS_OUTSIDE_RANGE,
    EVENTS_READ,
    EVENTS_REJECTED,
)
from dp_transforms.local.machine import Spread, bytes_in_windows
from dp_transforms.logs import EventFields, LogChunk
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader
from dp_transforms.stores.remote_files import full_name

_UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}


def _memory_size(text: str) -> int:
    """``4GB``, ``500MB``, ``1.5GiB``: bytes."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?(MB|GB|MiB|GiB)", text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a size. Use a number and MB, GB, MiB or GiB, such as 4GB.")
    return int(float(match[1]) * _UNITS[match[2]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """How a replay on this machine does the work."""

    memory: int | None = opt(
        ENGINE,
        "Memory that all processes of a replay on this machine may take together, such as 4GB. What does not "
        "fit goes to disk, to files without a name in the folder for temporary files (TMPDIR). Default: what is "
        "free.",
        brief="The most that all processes take, e.g. 4GB.",
        type=ParsedText("size", _memory_size),
        metavar="SIZE",
    )
    processes: int | None = opt(
        ENGINE,
        "Worker processes of a replay on this machine; the report does not depend on it. Default: one for each core, "
        "as far as memory goes; a small log is replayed by the command itself.",
        type=click.IntRange(min=1),
        metavar="N",
    )
    verbose: bool = switch(ADVANCED, "Show Beam's log, which may contain cells of the data.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartOptions:
    """Which part of a run is taken."""

    state: str | None = opt(
        ADVANCED,
        "Take the range in parts, one command after the other, for one budget: a private file with what one "
        "part hands to the next, made by the first one (mode 0600). The budget options and the key are the "
        "same in all parts. With --charge contributions users spend at their own pace, as in a stream.",
        metavar="FILE",
    )
    until: int | None = opt(
        ADVANCED,
        "With --state: this part ends here, at the end of a window; it begins where the part before it ended. "
        "Default: --end.",
        type=UTC_TIME,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The command line of ``shh replay``."""

    logs: tuple[str, ...] = argument("LOG...")
    fields: FieldOptions = nested(FieldOptions)
    plan_file: str | None = plan_file_option()
    plan: PlanOptions = nested(PlanOptions)
    output: str | None = opt(
        OUTPUT,
        "Where the report goes: a path or URL that ends in .avro or .jsonl and must not exist.",
        needed="required",
        brief="The report: .avro or .jsonl.",
        metavar="FILE|URL",
    )
    block_output: str | None = opt(
        OUTPUT,
        "With rounds: a second report, of what many users hold in a whole block, such as a day. It costs nothing more. "
        "A path or URL that ends in .avro or .jsonl and must not exist.",
        metavar="FILE|URL",
    )
    noise_key_file: str | None = opt(
        BUDGET,
        "The noise key: a secret of at least 32 random bytes, mode 0600; not with --run-id, unless --state is given, "
        "which always needs it. Default: a key that is drawn for this run and forgotten.",
        metavar="FILE",
    )
    run_id: str | None = opt(
        ADVANCED,
        "Name of the run; not with --noise-key-file, unless --state is given. Default: a fresh one. Every new run "
        "must have a new name.",
    )
    part: PartOptions = nested(PartOptions)
    account: AccountOptions = nested(AccountOptions)
    stream: str = opt(OUTPUT, "Name of the stream in the report.", metavar="NAME", default="events")
    html: str | None = opt(
        OUTPUT,
        "Also write the page of `shh show --html`, once the report is there.",
        brief="Also a page for the browser.",
        metavar="FILE.html",
    )
    view: ViewOptions = nested(ViewOptions)
    dead_letter: str | None = opt(
        OUTPUT,
        "File for a list of the rows that cannot be read (JSON lines; a local one has mode 0600).",
        brief="For a list of rows that cannot be read.",
        metavar="FILE|URL",
    )
    max_bad_fraction: float = opt(
        INPUT,
        "Publish nothing if a larger fraction of the rows cannot be read. Keep it high: one user can write such "
        "rows, and a report that does not appear reveals them.",
        type=click.FloatRange(0, 1),
        default=0.5,
    )
    dry_run: bool = switch(
        OUTPUT,
        "Only say what the replay would read, find, need and charge. Some rows are looked at; nothing is reserved or "
        "written, and --output is not needed.",
        brief="Only say what it would do.",
    )
    allow_empty: bool = switch(
        OUTPUT,
        "Write an empty report if no event of the log is inside the range. By default there is none then (exit code "
        "4), and nothing is spent. Give it where others see whether a report appears.",
    )
    work: WorkOptions = nested(WorkOptions)

    def with_absolute_paths(self) -> ReplayOptions:
        """A copy: workers have another current folder. URLs of stores stay. Raises UrlError for any other URL."""

        def full(name: str | None) -> str | None:
            return None if name is None else full_name(name)

        return dataclasses.replace(
            self,
            logs=tuple(map(full_name, self.logs)),
            output=full(self.output),
            dead_letter=full(self.dead_letter),
            block_output=full(self.block_output),
            noise_key_file=full(self.noise_key_file),
            plan=dataclasses.replace(self.plan, public_items=full(self.plan.public_items)),
        )

    @property
    def has_no_budget(self) -> bool:
        """Whether nothing says what is to be published, where or from which account."""
        others = (self.plan_file, self.output, self.part.state, self.part.until, self.account.ledger)
        return self.plan == PlanOptions() and all(value is None for value in others)


_STATE_RULES = (
    Rule("--until", needs="--state", remedy="Give --state FILE, or declare another range with --end."),
    Rule(
        "--state",
        needs="--noise-key-file",
        why="all parts of a run have one key, since users are recognised by it",
        remedy=MAKE_A_KEY,
    ),
)

REPLAY_RULES = (
    *PLAN_RULES,
    Rule(
        "--dry-run",
        excludes="--state",
        why="only the state knows which part comes next",
        remedy="Leave --state out: the dry run is then of the whole range.",
    ),
    Rule(
        "--html",
        excludes="--state",
        why="there is no whole report when the command ends",
        remedy="Make the page of what is there: shh show FOLDER --html FILE.html.",
    ),
    Rule("--page-title", needs="--html", is_usage=True),
    *_STATE_RULES,
    *ACCOUNT_RULES,
    dataclasses.replace(NAMED_WITH_KEY, unless="--state"),
)


@dataclasses.dataclass(frozen=True)
class ReplayRequest:
    """All that a replay needs: what was asked for, and what that comes to.

    chunks: of the logs.
    shards: into how many parts users and items are cut; None for the number that suits this machine. Results do not
        depend on it.
    state: of the part that is taken; None for all of a run at once.
    """

    options: ReplayOptions
    chunks: Sequence[LogChunk]
    fields: EventFields
    plan: Plan
    output: str
    run_id: str
    shards: int | None = None
    state: StateOptions | None = None

    @property
    def spread(self) -> Spread:
        """By how many processes this machine does it."""
        work = self.options.work
        return Spread.of(bytes_in_windows(self.chunks, self.plan.schedule), work.processes, work.memory)

    @property
    def stream(self) -> str:
        return self.options.stream

    @property
    def public_items(self) -> str | None:
        return self.options.plan.public_items

    @property
    def header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream)

    @property
    def block_header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream, of_blocks=True)


@dataclasses.dataclass(frozen=True)
class ReplaySummary:
    """For the operator alone. unpaid: pairs of users with more than a purse pays for. seconds: of the pipeline."""

    events: int
    outside_range: int
    outside_domain: int
    rejected: int
    unpaid: int
    seconds: float

    @classmethod
    def of_counts(cls, counts: Mapping[str, int], seconds: float) -> ReplaySummary:
        """counts: by the names of `operator_counts`."""
        return cls(
            events=counts.get(EVENTS_READ, 0),
            outside_range=counts.get(EVENTS_OUTSIDE_RANGE, 0),
            outside_domain=counts.get(EVENTS_OUTSIDE_DOMAIN, 0),
            rejected=counts.get(EVENTS_REJECTED, 0),
            unpaid=counts.get(CONTRIBUTIONS_UNPAID, 0),
            seconds=seconds,
        )
