"""What a ledger is asked, what it stores, and what it answers; and its errors, each one line with the remedy."""

from __future__ import annotations

import dataclasses
import decimal
import enum
from decimal import Decimal
from typing import Any

from dp_transforms.checks import check_names, check_whole
from dp_transforms.errors import InputError, UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.runs.lifetime_cost import BudgetRule, LifetimeCost, Price, from_delta_units, from_epsilon_units

_SHOWN_DIGITS = 6
_NONCE_DIGITS = 32
LONGEST_NAME = 500


class StateError(UserError, ValueError):
    """A state that cannot be used."""


class LedgerError(UserError):
    """The ledger cannot be opened, read or written, or another process has it, or this part; nothing was changed."""


class RunRefusedError(UserError):
    """The part does not fit to what the ledger knows of its run, or of its population."""


class PublishedError(RunRefusedError):
    """The windows are published already, from another log: they stay as they are, and nothing is left to do."""

    exit_code = 3


class VerdictKind(enum.StrEnum):
    """What a part that may run is to its run. All other parts are refused."""

    NEW = "new"  # the first one of a run, which pays for all of it
    CONTINUES = "continues"  # a further one of a run that has paid
    RESUMES = "resumes"  # the same one again, which was begun and not finished, with the same input
    DONE = "done"  # it was finished with the same input: there is nothing to do


class Status(enum.StrEnum):
    """Of a part, or of a run, which is RESERVED while it is open. Only a released run is not charged its price."""

    RESERVED = "reserved"  # charged; nothing was drawn
    RUNNING = "running"  # from here on it counts as drawn
    FAILED = "failed"  # the same; its process has said that it ended
    FINISHED = "finished"
    ABANDONED = "abandoned"  # will never be resumed; what it cost stays spent
    RELEASED = "released"  # a run that drew nothing; a part that published nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population(BudgetRule):
    """All streams that share their users, with the rule of their runs. Set once, when it is declared."""

    name: str
    declared_at: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run: what is asked for, and, as it is stored, what became of it.

    run_id: "" for one without a name yet. population: all streams that share its users; "" in a ledger of one run.
    horizon, range_start, range_end, plan_epsilon, plan_delta: of the plan; amounts in units. charged: what its
    population pays. user_field, item_field: of the log: from other fields each user would have a second budget.
    key_fingerprint: a keyed hash of a constant, never the key. state_path: where its parts hand their state over; ""
    for a run that is one part.
    """

    run_id: str = ""
    population: str
    stream: str
    plan_fingerprint: str
    horizon: int
    range_start: str
    range_end: str
    plan_epsilon: int
    plan_delta: int
    key_fingerprint: str = ""
    user_field: str = ""
    item_field: str = ""
    state_path: str = ""
    charged_epsilon: int = 0
    charged_delta: int = 0
    charged_sampling: int = 0
    status: Status = Status.RESERVED
    who: str = ""
    reserved_at: str = ""

    def __post_init__(self) -> None:
        check_names(population=self.population or None, stream=self.stream, run_id=self.run_id or None)
        for name in ("population", "stream", "run_id"):
            if len(getattr(self, name)) > LONGEST_NAME:
                raise InputError(name, f"must have at most {LONGEST_NAME} characters.")
        check_whole("horizon", self.horizon, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Windows ``first_window .. end_window - 1`` of a run: what is asked for, and, as it is stored, what became of it.

    input_fingerprint: of the immutable input. nonce: fresh, by it a part with a state draws
    (`planned_run.fresh_nonce`). output: where the report goes. version: of the shh that began it.
    state_before: the fingerprint of the state with which it begins; "" for none. state_after: from the moment when its
    report may be read, of the only state that it can leave; "" before. claim: how many processes got it. Times: ISO
    8601, for people; "" if not yet.
    """

    part: int = 0
    run_id: str = ""
    first_window: int
    end_window: int
    input_fingerprint: str = ""
    nonce: str = ""
    output: str = ""
    version: str = ""
    state_before: str = ""
    state_after: str = ""
    status: Status = Status.RESERVED
    claim: int = 0
    who: str = ""
    reserved_at: str = ""
    started_at: str = ""
    publishing_at: str = ""
    finished_at: str = ""

    def __post_init__(self) -> None:
        check_whole("first_window", self.first_window, 0)
        check_whole("end_window", self.end_window, 1)

    @property
    def may_be_published(self) -> bool:
        """Whether something was drawn that somebody may have read."""
        return bool(self.started_at) and self.status != Status.RELEASED

    @property
    def is_open(self) -> bool:
        return self.status in (Status.RESERVED, Status.RUNNING, Status.FAILED)

    @property
    def windows(self) -> str:
        return f"windows {self.first_window} .. {self.end_window - 1} of run {self.run_id}"


@dataclasses.dataclass(frozen=True)
class PartRequest:
    """A part that wants to run, with the cost of its run. draws_once: the input or the key cannot be given again: what
    may have drawn is refused and not resumed."""

    run: Run
    part: Part
    cost: LifetimeCost
    draws_once: bool = False

    def __post_init__(self) -> None:
        nonce = self.part.nonce
        # Without one it would draw the noise of the run, as it may have done from an older state or an older ledger.
        if self.run.state_path and (len(nonce) != _NONCE_DIGITS or set(nonce) - set("0123456789abcdef")):
            raise ValueError(f"nonce must be {_NONCE_DIGITS} hex digits.")

    @classmethod
    def of_plan(cls, plan: Plan, part: Part, *, draws_once: bool = False, **fields: Any) -> PartRequest:
        """fields: of `Run`, all that the plan does not say."""
        schedule, cost = plan.schedule, LifetimeCost.of_plan(plan)
        start, end = (format_utc(at * MICROS_PER_SECOND) for at in (schedule.start_seconds, schedule.end_seconds))
        run = Run(
            plan_fingerprint=plan.fingerprint,
            horizon=schedule.horizon,
            range_start=start,
            range_end=end,
            plan_epsilon=cost.epsilon,
            plan_delta=cost.delta,
            **fields,
        )
        return cls(run, part, cost, draws_once)

    @classmethod
    def whole(cls, plan: Plan, input_fingerprint: str = "", *, draws_once: bool = True, **fields: Any) -> PartRequest:
        """All windows of a run of this plan, without a state."""
        part = Part(first_window=0, end_window=plan.schedule.horizon, input_fingerprint=input_fingerprint)
        return cls.of_plan(plan, part, draws_once=draws_once, **fields)


@dataclasses.dataclass(frozen=True)
class Balance:
    """What a population has spent, and what is left. runs: how many are charged. total: of all of them, in units, with
    the base of the rule."""

    population: Population
    runs: int
    total: Price

    @property
    def max_epsilon(self) -> Decimal:
        return from_epsilon_units(self.population.max_epsilon)

    @property
    def max_delta(self) -> Decimal:
        return from_delta_units(self.population.max_delta)

    @property
    def spent_epsilon(self) -> Decimal:
        return from_epsilon_units(self.total.epsilon)

    @property
    def spent_delta(self) -> Decimal:
        """With what the rule set aside for sampled noise, all of which counts as spent from the first run on."""
        return from_delta_units(self.total.delta + (self.population.sampling if self.runs else 0))

    @property
    def left_epsilon(self) -> Decimal:
        return from_epsilon_units(max(0, self.population.max_epsilon - self.total.epsilon))

    @property
    def left_delta(self) -> Decimal:
        population = self.population
        return from_delta_units(max(0, population.max_delta - population.sampling - self.total.delta))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The part may run (or, DONE, need not). Hand it to `Ledger.start`, `publishing`, `finish` and `fail`.

    part: as it is stored. balance: None in a ledger of one run. takes: what its population was charged now; nothing
    unless the kind is NEW.
    """

    kind: VerdictKind
    run_id: str
    balance: Balance | None
    takes: Price
    part: Part

    @property
    def line(self) -> str:
        """What every run of a population tells the operator; "" for one of its own."""
        balance = self.balance
        if balance is None:
            return ""
        of = f"of the {amount(balance.max_epsilon)} that users of *{balance.population.name}* may ever lose"
        left = f"{amount(balance.left_epsilon, down=True)} is left"
        if self.takes.epsilon:
            return f"This run takes {amount(from_epsilon_units(self.takes.epsilon))} {of}; {left}."
        return f"This part is of a run that has paid, and takes nothing more; {of} {left}."


def amount(value: Decimal, *, down: bool = False) -> str:
    """An amount for people: 6 digits, rounded up; what is left is rounded down."""
    if not value:
        return "0"
    rounding = decimal.ROUND_DOWN if down else decimal.ROUND_UP
    context = decimal.Context(prec=_SHOWN_DIGITS, rounding=rounding)
    return f"{float(context.plus(value)):.{_SHOWN_DIGITS}g}"
