"""What a ledger is asked, what it stores, and what it answers; and what a part of a run is to its run, or why it is
refused: plain frozen records, and errors of one line with the remedy."""

from __future__ import annotations

import dataclasses
import decimal
import enum
from decimal import Decimal
from typing import Any

from dp_transforms.checks import check_names, check_whole
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.runs.lifetime_cost import BudgetRule, LifetimeCost, Price, from_delta_units, from_epsilon_units

USER = "user"
_SHOWN_DIGITS = 6
LONGEST_NAME = 500


class StateError(UserError, ValueError):
    """A state that cannot be used."""


class LedgerError(UserError):
    """The ledger cannot be opened, read or written; nothing was changed."""


class RunRefusedError(UserError):
    """The part does not fit to what its state, or the ledger, knows of its run, or of its population."""


class PublishedError(RunRefusedError):
    """The windows are published already, from another log: they stay as they are, and nothing is left to do."""

    exit_code = 3


class BudgetExceededError(RunRefusedError):
    """The run would take more than its population has left."""


class LedgerBusyError(LedgerError):
    """Another process has the ledger, or this part, at this moment."""


class NoLedgerError(LedgerError):
    """There is none."""


class LedgerDamagedError(LedgerError):
    """The ledger is not the one that was last written: damaged, deleted, restored from a backup, or changed."""


class VerdictKind(enum.StrEnum):
    """What a part that wants to run is to its run, by its state and by a ledger; else it is refused."""

    NEW = "new"  # the first one of a run, which pays for all of it
    CONTINUES = "continues"  # a further one of a run that has paid
    RESUMES = "resumes"  # the same one again, which was begun and not finished, with the same input
    DONE = "done"  # it was finished with the same input: there is nothing to do


class Status(enum.StrEnum):
    """Of a part, or of a run. Only a released run is not charged its price."""

    RESERVED = "reserved"  # charged; nothing was drawn
    RUNNING = "running"  # from here on it counts as drawn
    FINISHED = "finished"
    FAILED = "failed"  # may be resumed with the same input
    ABANDONED = "abandoned"  # will never be resumed; what it cost stays spent
    RELEASED = "released"  # a run that drew nothing, charged for its histogram alone; a part that published nothing


@dataclasses.dataclass(frozen=True)
class Caps:
    """What the users of a population may ever lose. rule: as in `BudgetRule.declare`; None for its default."""

    max_epsilon: float | str
    max_delta: float | str
    rule: str | None = None


@dataclasses.dataclass(frozen=True)
class PartRequest:
    """A part that wants to run: windows ``first_window .. end_window - 1`` of a plan's range.

    population: all streams that share its users. stream, plan_fingerprint, cost: of the plan. horizon: its windows.
    range_start, range_end: of the plan, ISO 8601. run_id: None for a first part whose run has no name yet.
    input_fingerprint: of the immutable input, of a later part with its nonce; key_fingerprint: a keyed hash of a
        constant, never the key.
    state_fingerprint: of the state that the part begins with, without what it says about a part that was begun; "" for
    a first part, and without a state. It must be the one that the part before was finished with.
    draws_once: the input cannot be given again, as that of a stream: a part that may have drawn is refused and not
    resumed.
    """

    population: str
    stream: str
    plan_fingerprint: str
    cost: LifetimeCost
    horizon: int
    first_window: int
    end_window: int
    range_start: str
    range_end: str
    input_fingerprint: str
    key_fingerprint: str
    run_id: str | None = None
    state_fingerprint: str = ""
    draws_once: bool = False

    def __post_init__(self) -> None:
        check_names(population=self.population, stream=self.stream, run_id=self.run_id)
        for name in ("population", "stream", "run_id", "plan_fingerprint", "input_fingerprint", "key_fingerprint"):
            text = getattr(self, name)
            if text is not None and len(text) > LONGEST_NAME:
                raise ValueError(f"{name} must have at most {LONGEST_NAME} characters, got {len(text):,}.")
        check_whole("horizon", self.horizon, 1)
        check_whole("first_window", self.first_window, 0, self.horizon)
        check_whole("end_window", self.end_window, self.first_window, self.horizon)

    @classmethod
    def of_plan(cls, plan: Plan, *, population: str, stream: str, **fields: Any) -> PartRequest:
        """The request with all that the plan says. fields: the others; without windows, all of the plan's."""
        schedule = plan.schedule
        ends = [format_utc(second * MICROS_PER_SECOND) for second in (schedule.start_seconds, schedule.end_seconds)]
        windows = {"first_window": 0, "end_window": schedule.horizon}
        return cls(
            population=population,
            stream=stream,
            plan_fingerprint=plan.fingerprint,
            cost=LifetimeCost.of_plan(plan),
            horizon=schedule.horizon,
            range_start=ends[0],
            range_end=ends[1],
            **{**windows, **fields},
        )


@dataclasses.dataclass(frozen=True)
class StateMark:
    """What a state file says of itself, for `Ledger.doctor`. closed_through: the first window that is still to come."""

    run_id: str
    plan_fingerprint: str
    closed_through: int
    fingerprint: str


@dataclasses.dataclass(frozen=True)
class Population:
    """name, unit, rule: set once, when the population is declared."""

    name: str
    unit: str
    rule: BudgetRule
    declared_at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run as it is stored. status: RESERVED while it is open, else ABANDONED or RELEASED; its parts have their
    own. kept: how much of its price stays charged if it is released; nothing, but in
    ledgers of earlier versions.
    """

    run_id: str
    population: str
    stream: str
    plan_fingerprint: str
    mode: str
    horizon: int
    range_start: str
    range_end: str
    plan_epsilon: int
    plan_delta: int
    price: Price
    kept: Price
    key_fingerprint: str
    status: Status
    who: str
    place: str
    process: str
    reserved_at: str


@dataclasses.dataclass(frozen=True)
class Part:
    """A part as it is stored. claim: the entry of the ledger by which its process got it. Times: "" if not yet.

    state_after: of a finished part, the state that it left; of one that was `publishing`, the only one it can have
    left; else "".
    """

    part: int
    run_id: str
    first_window: int
    end_window: int
    input_fingerprint: str
    state_before: str
    state_after: str
    status: Status
    claim: int
    who: str
    place: str
    process: str
    reserved_at: str
    started_at: str = ""
    finished_at: str = ""

    @property
    def has_started(self) -> bool:
        return bool(self.started_at)

    @property
    def may_be_published(self) -> bool:
        """Whether something was drawn that somebody may have read."""
        return self.has_started and self.status != Status.RELEASED

    @property
    def was_publishing(self) -> bool:
        """Whether the process that had it has said so: its report may be read."""
        return bool(self.state_after)

    @property
    def has_ended(self) -> bool:
        return self.status == Status.FINISHED

    def drew_from(self, input_fingerprint: str) -> bool:
        return self.has_started and self.input_fingerprint == input_fingerprint

    def ended_at(self, window: int) -> bool:
        """Whether a state that is closed up to here can be what this part has left: a stream that was stopped leaves
        one before its end. No part leaves one in which it has closed nothing."""
        return self.first_window < window <= self.end_window

    @property
    def range(self) -> tuple[int, int]:
        return self.first_window, self.end_window


@dataclasses.dataclass(frozen=True)
class Balance:
    """What a population has spent, and what is left: exact, in epsilon and delta.

    runs: how many are charged their price. total: of all of them, in units, with the conversion of the rule; and what
    the histograms of released ones took.
    """

    population: Population
    runs: int
    total: Price

    @property
    def max_epsilon(self) -> Decimal:
        return from_epsilon_units(self.population.rule.max_epsilon)

    @property
    def max_delta(self) -> Decimal:
        return from_delta_units(self.population.rule.max_delta)

    @property
    def spent_epsilon(self) -> Decimal:
        return from_epsilon_units(self.total.epsilon)

    @property
    def spent_delta(self) -> Decimal:
        """With what the rule set aside for sampled noise, all of which counts as spent from the first run on."""
        is_used = self.runs or self.total.sampling
        return from_delta_units(self.total.delta + (self.population.rule.sampling if is_used else 0))

    @property
    def left_epsilon(self) -> Decimal:
        return from_epsilon_units(max(0, self.population.rule.max_epsilon - self.total.epsilon))

    @property
    def left_delta(self) -> Decimal:
        rule = self.population.rule
        return from_delta_units(max(0, rule.max_delta - rule.sampling - self.total.delta))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The part may run (or, DONE, need not). Hand it to `Ledger.start`, `finish` and `fail`.

    takes: what this part took now; nothing unless the kind is NEW. same_input: the id of another run of this plan that
    drew from the same input, "" if there is none: this run is then paid for a second time. was_publishing: whether the
    process that had this part before may have published its report.
    """

    kind: VerdictKind
    run_id: str
    part: int
    claim: int
    balance: Balance
    takes: Price
    same_input: str = ""
    was_publishing: bool = False

    @property
    def line(self) -> str:
        """What every run tells the operator."""
        balance = self.balance
        of = f"of the {amount(balance.max_epsilon)} that users of *{balance.population.name}* may ever lose"
        left = f"{amount(balance.left_epsilon, down=True)} is left"
        if self.kind == VerdictKind.NEW:
            taken = f"this run takes {amount(from_epsilon_units(self.takes.epsilon))} {of}; {left}."
            again = f" Run {self.same_input} drew from the same input before, and was paid for too."
            return taken + (again if self.same_input else "")
        what = {
            VerdictKind.CONTINUES: "this part continues a run that has paid, and takes nothing more",
            VerdictKind.RESUMES: "this part resumes what was begun, and takes nothing more",
            VerdictKind.DONE: "this part is finished, and there is nothing to do",
        }[self.kind]
        return f"{what}; {of} {left}."


def amount(value: Decimal, *, down: bool = False) -> str:
    """An amount for people: 6 digits, rounded up; what is left is rounded down."""
    if not value:
        return "0"
    rounding = decimal.ROUND_DOWN if down else decimal.ROUND_UP
    context = decimal.Context(prec=_SHOWN_DIGITS, rounding=rounding)
    return f"{float(context.plus(value)):.{_SHOWN_DIGITS}g}"
