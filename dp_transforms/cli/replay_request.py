"""What a replay is asked for: its options and their rules, what they come to, and what it tells the operator."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import click

from dp_transforms.cli.engine_choice import (
    ENGINE_RULES,
    FLINK,
    IN_PROCESS,
    ON_FLINK,
    ClusterOptions,
    EngineChoice,
    EngineName,
    choose_engine,
)
from dp_transforms.cli.options import (
    ADVANCED,
    BUDGET,
    ENGINE,
    INPUT,
    MAKE_A_KEY,
    OUTPUT,
    ParsedText,
    Rule,
    argument,
    nested,
    opt,
    switch,
)
from dp_transforms.cli.plan_options import PLAN_RULES, PlanOptions
from dp_transforms.cli.shared_options import (
    STATE_RULES,
    AccountOptions,
    FieldOptions,
    PartOptions,
    StateOptions,
    ViewOptions,
    log_format_option,
    plan_file_option,
)
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields, LogChunk
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader
from dp_transforms.stores.remote_files import full_name

USUAL_WORKER_MEGABYTES, LEAST_WORKER_MEGABYTES = 2000, 1500
_UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}


def _memory_size(text: str) -> int:
    """``4GB``, ``500MB``, ``1.5GiB``: bytes."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?(MB|GB|MiB|GiB)", text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a size. Use a number and MB, GB, MiB or GiB, such as 4GB.")
    return int(float(match[1]) * _UNITS[match[2]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """Who does the work, and with how much memory."""

    engine: str | None = opt(
        ENGINE,
        "What runs the replay. in-process: this machine alone. flink: a Flink cluster, or one that is started here; "
        "its workers read the log, --domain-file and --noise-key-file, which it needs, at the same paths, and one of "
        "them writes the report; options for Beam follow after `--`. Default: flink with --flink-master, else "
        "in-process.",
        brief="in-process (default) or flink.",
        type=EngineName(IN_PROCESS, FLINK, job="replay_log"),
    )
    cluster: ClusterOptions = nested(ClusterOptions)
    worker_memory: int | None = opt(
        ENGINE,
        "Memory that one Python worker of --engine flink may take, in MB: of a very large log it decides into how"
        f" many parts the work is cut. Default: {USUAL_WORKER_MEGABYTES}.",
        type=click.IntRange(LEAST_WORKER_MEGABYTES),
        metavar="MB",
    )
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
        "Worker processes of a replay on this machine; the report does not depend on it. 1: this process does "
        "all the work, unless the log does not fit into its memory. Default: one for each core; 1 for a small log, "
        "and with --state.",
        type=click.IntRange(min=1),
        metavar="N",
    )
    verbose: bool = switch(ADVANCED, "Show Beam's log, which may contain cells of the data.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The command line of ``shh replay``."""

    logs: tuple[str, ...] = argument("LOG...")
    log_format: str | None = log_format_option(INPUT)
    fields: FieldOptions = nested(FieldOptions)
    plan_file: str | None = plan_file_option()
    plan: PlanOptions = nested(PlanOptions)
    output: str | None = opt(
        OUTPUT,
        "Where the report goes: a path or URL that ends in .avro, .jsonl or .parquet and must not exist. `shh load` "
        "copies it to a database.",
        needed="required",
        brief="The report: .avro, .jsonl or .parquet.",
        metavar="FILE|URL",
    )
    block_output: str | None = opt(
        OUTPUT,
        "With rounds: a second report, of what many users hold in a whole block, such as a day. It costs nothing more. "
        "A path or URL that ends in .avro, .jsonl or .parquet and must not exist.",
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
            plan=dataclasses.replace(self.plan, domain_file=full(self.plan.domain_file)),
        )

    @property
    def has_no_budget(self) -> bool:
        """Whether nothing says what is to be published, where or from which account."""
        others = (self.plan_file, self.output, self.part.state, self.part.until, self.account.ledger)
        return self.plan == PlanOptions() and all(value is None for value in others)


REPLAY_RULES = (
    *PLAN_RULES,
    *ENGINE_RULES,
    Rule(
        "--engine flink, --flink-master",
        needs="--noise-key-file",
        why="workers outside this process need one noise key",
        remedy=MAKE_A_KEY,
    ),
    Rule("--block-output", excludes="--detach", why="this command publishes both reports"),
    Rule(
        "--state",
        excludes=ON_FLINK,
        why="it was not tried",
        remedy="Take the parts in this process (leave --engine out), or the whole range there without --state.",
    ),
    Rule(
        "--dry-run",
        excludes="--state",
        why="only the state knows which part comes next",
        remedy="Leave --state out: the dry run is then of the whole range.",
    ),
    Rule(
        "--html",
        excludes="--state, --detach",
        why="there is no whole report when the command ends",
        remedy="Make the page of what is there: shh show FOLDER --html FILE.html.",
    ),
    Rule("--page-title", needs="--html", is_usage=True),
    Rule(
        "--detach",
        excludes="--ledger",
        why="the ledger must hear how the run ended",
        remedy="Leave --detach out, or reserve the run by hand (shh ledger reserve).",
    ),
    *STATE_RULES,
    Rule(
        "--run-id",
        excludes="--noise-key-file",
        unless="--state",
        why="if both were used again on a log that has changed, both runs would draw the same noise, and the two"
        " reports would show what changed",
        remedy="Leave --run-id out: a fresh one is drawn.",
    ),
)


@dataclasses.dataclass(frozen=True)
class ClusterReplay:
    """A replay on Flink. beam_words: further options of Beam. detach: leave the job running.
    worker_megabytes: what one Python worker may take."""

    choice: EngineChoice
    beam_words: tuple[str, ...]
    detach: bool
    worker_megabytes: int = USUAL_WORKER_MEGABYTES


def choose_replay_engine(options: WorkOptions, beam_words: Sequence[str]) -> ClusterReplay | None:
    """None for a replay in this process. Raises UserError for addresses and options of Beam that cannot be used."""
    choice = choose_engine(options.engine, options.cluster, usually=IN_PROCESS)
    if choice.name == IN_PROCESS:
        if beam_words:
            raise UserError(
                "options of Beam (after --) need --engine flink. Leave them out; another runner of Beam takes"
                " pipelines/replay_log.py."
            )
        return None
    return ClusterReplay(
        dataclasses.replace(choice, is_batch=True),
        tuple(beam_words),
        options.cluster.detach,
        options.worker_memory or USUAL_WORKER_MEGABYTES,
    )


@dataclasses.dataclass(frozen=True)
class ReplayRequest:
    """All that a replay needs: what was asked for, and what that comes to.

    chunks: of the logs. hint: for the operator, why most rows may be unreadable (`hint_of_log`).
    shards: into how many parts users and items are cut; None for the number that suits this machine. Results do not
        depend on it.
    workers: so many of a cluster read the log at once. state: of the part that is taken; None for all of a run at once.
    """

    options: ReplayOptions
    chunks: Sequence[LogChunk]
    fields: EventFields
    plan: Plan
    output: str
    run_id: str
    hint: str | None = None
    shards: int | None = None
    workers: int = 1
    state: StateOptions | None = None

    @property
    def stream(self) -> str:
        return self.options.stream

    @property
    def domain_file(self) -> str | None:
        return self.options.plan.domain_file

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
