"""The result of a privacy audit in words, as tables for a terminal, and as a record for JSON; of plans by hits."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.audit.attack_streams import AttackStream
from dp_transforms.audit.claim import Mechanism
from dp_transforms.audit.exact import ChargedAudit, ExactAudit
from dp_transforms.audit.names.exact import NamesExactAudit
from dp_transforms.audit.names.payments import PaymentAudit
from dp_transforms.audit.names.sampled import NamesSampledAudit
from dp_transforms.audit.sampled import FALSE_ALARM, SampledAudit
from dp_transforms.audit.worst_streams import rounds_until_excluded
from dp_transforms.plan.charging_plan import ChargingPlan
from dp_transforms.plan.release_plan import ReleasePlan

FORMAT_VERSION = 1
_NEVER_TRIED = (
    "noise that does not follow the holders, and hits that one part of a run hands to the next: these have tests of "
    "their own",
    "reading logs, hashing ids, bounding contributions, Beam, retries and late events: these have tests of their own",
    "delta for hash collisions and for the sampled noise: far below anything that can be observed",
    "a log that shares users with other runs, a user that is several people, groups of users",
    "the secrecy of the noise key, timing, and what only the operator sees",
)

_Sampled = SampledAudit | NamesSampledAudit
_Part = ExactAudit | NamesExactAudit | PaymentAudit


class SampledEvent(NamedTuple):
    """What was counted in the runs of both worlds: the stream, the event in words and by its bound, and (world, seen,
    probability) of each. fit: what more is said of the agreement with the exact law."""

    stream: dict[str, Any]
    in_words: str
    bound: dict[str, Any]
    worlds: tuple[tuple[str, int, float], ...]
    fit: Mapping[str, Any] = {}


class AuditReport(abc.ABC):
    """What the audit of one plan has found, in words, as tables for a terminal, and as a record for JSON.

    parts: those that were done, each with what it found to be violated. sampled: None where the real code was not run.
    """

    sampled_note: str

    def __init__(self, plan: ReleasePlan, parts: Sequence[_Part | None], sampled: _Sampled | None) -> None:
        self.violations = [text for part in (*parts, sampled) if part is not None for text in part.violations]
        self._claim = plan.guarantee, plan.epsilon
        self._runs = sampled

    def print(self, console: Console) -> None:
        """For people."""
        console.print(Text(self._claim[0], style="bold"), soft_wrap=True)
        self.print_exact(console)
        if self._runs is None:
            console.print("The real code was not run (--runs 0).")
        else:
            console.print(self._sampled_table(self._runs))
            console.print(self.sampled_note, soft_wrap=True)
        console.print(Text("\nNot tried:", style="bold"))
        for limit in self.not_tried():
            console.print(f"- {limit}.", soft_wrap=True)
        console.print()
        console.print(self._verdict(), soft_wrap=True)

    def record(self) -> dict[str, Any]:
        """All numbers. What is unbounded is null."""
        return {
            "format_version": FORMAT_VERSION,
            "verdict": "violated" if self.violations else "passed",
            "violations": self.violations,
            **self.exact_records(),
            "sampled": None if self._runs is None else self._sampled_record(self._runs),
            "not_tried": list(self.not_tried()),
        }

    @abc.abstractmethod
    def print_exact(self, console: Console) -> None:
        """The plan, and all that is not sampled."""

    @abc.abstractmethod
    def exact_records(self) -> dict[str, Any]:
        """The same for JSON."""

    @abc.abstractmethod
    def not_tried(self) -> tuple[str, ...]:
        """What a privacy audit of this plan says nothing about."""

    @abc.abstractmethod
    def sampled_event(self) -> SampledEvent:
        """What was sampled, where anything was."""

    def _sampled_table(self, sampled: _Sampled) -> Table:
        design, event = sampled.design, self.sampled_event()
        table = table_of(f"Sampled: {design.runs:,} runs of the real code in each world")
        confidence = f"with {100 * sampled.confidence:g} % confidence, of {self._claim[1]:g}"
        table.add_row("epsilon is at least", f"{rounded_down(sampled.epsilon)}, {confidence}")
        table.add_row("to be expected of so many runs", rounded_down(design.expected_epsilon))
        for world, seen, probability in event.worlds:
            table.add_row(f"{event.in_words}, {world} the user", f"{seen:,}; {design.runs * probability:,.0f} expected")
        tests = f", {event.fit['tests']} tests" if "tests" in event.fit else ""
        table.add_row(
            f"agreement with the exact law{tests}",
            f"p = {sampled.p_value:.2g}; alarm below {FALSE_ALARM:g}",
            style="bold red" if sampled.p_value < FALSE_ALARM else None,
        )
        return table

    def _sampled_record(self, sampled: _Sampled) -> dict[str, Any]:
        design, event = sampled.design, self.sampled_event()
        return {
            "runs_in_each_world": design.runs,
            "stream": event.stream,
            "event": {
                **event.bound,
                **{f"seen_{world}_user": seen for world, seen, _ in event.worlds},
                **{f"expected_{world}_user": design.runs * probability for world, _, probability in event.worlds},
            },
            "epsilon_lower_bound": sampled.epsilon,
            "confidence": sampled.confidence,
            "expected_lower_bound": design.expected_epsilon,
            "fit": {"p_value": sampled.p_value, "false_alarm": FALSE_ALARM, **event.fit},
        }

    def _verdict(self) -> Text:
        if self.violations:
            return Text("VIOLATED: " + "; ".join(self.violations) + ".", style="bold red")
        what = "nothing that was computed" if self._runs is None else "nothing that was computed or sampled"
        return Text(f"PASSED: {what} exceeds a claim of this plan.", style="bold green")


class ChargingReport(AuditReport):
    """Of a plan of which users pay for hits."""

    sampled_note = (
        "The runs have the noise, the zone and the hits of the plan; threshold and counts are smaller by the same "
        "number, since only their difference matters. The user holds one item a window, in as many windows as it takes "
        "or the plan has."
    )

    def __init__(self, plan: ChargingPlan, exact: ExactAudit, sampled: SampledAudit | None) -> None:
        super().__init__(plan, [exact], sampled)
        self._plan, self._exact, self._sampled = plan, exact, sampled
        self._enough_rounds = rounds_until_excluded(Mechanism.of_plan(plan))  # exclude a user near the threshold

    def print_exact(self, console: Console) -> None:
        plan, worst = self._plan, self._exact.worst
        console.print(_plan_text(plan), soft_wrap=True)
        console.print(_exact_table(plan, self._exact))
        console.print(
            f"The worst stream tried attains epsilon {rounded_down(worst.epsilon)} at delta "
            f"{plan.delta_accounting:.4g}: {stream_text(worst.stream, plan)}.",
            soft_wrap=True,
        )
        console.print(_confidence_text(worst), soft_wrap=True)
        if worst.items < min(self._enough_rounds, plan.queries_per_user):
            console.print(
                f"So few items do not exclude the user. --rounds {self._enough_rounds} would exclude it, and find "
                "more.",
                soft_wrap=True,
            )

    def exact_records(self) -> dict[str, Any]:
        plan, exact = self._plan, self._exact
        noise = ("fingerprint", "release", "accountant", "noise_scale", "epsilon_per_query", "threshold", "zone_width")
        bounds = ("hits_per_user", "max_items_per_user")
        claimed = ("epsilon", "delta", "delta_accounting", "delta_open", "delta_sampling", "delta_hash")
        return {
            "plan": {**fields_of(plan, *noise, *bounds), "horizon": plan.schedule.horizon},
            "claimed": fields_of(plan, *claimed),
            "exact": {
                "adding": _side_record(exact.adding, plan),
                "removing": _side_record(exact.removing, plan),
                "lone_items": {"delta": exact.lone_delta},
                "together": {
                    "delta_at_claimed_epsilon": exact.together_delta,
                    "epsilon_at_claimed_delta": _finite(exact.together_epsilon),
                },
                "running_figure": [dataclasses.asdict(figure) for figure in exact.running],
            },
        }

    def not_tried(self) -> tuple[str, ...]:
        limits = [self._untried_streams()]
        if self._plan.domain_size:
            limits.append(
                "how items of the domain that nobody holds are drawn (draw_zero_items): every item of a sampled run "
                "has holders; that draw has tests of its own"
            )
        return (*limits, *_NEVER_TRIED)

    def sampled_event(self) -> SampledEvent:
        assert self._sampled is not None
        sampled, design = self._sampled, self._sampled.design
        return SampledEvent(
            {**dataclasses.asdict(design.stream), "in_words": stream_text(design.stream, self._plan)},
            f"loss >= {design.event_loss:.4f}",
            {"loss_at_least": design.event_loss},
            (("without", sampled.p_seen, design.p), ("with", sampled.q_seen, design.q)),
        )

    def _untried_streams(self) -> str:
        """The ceilings hold by a theorem of docs/audit.md for a number of items: no more is claimed than was
        computed."""
        plan, exact = self._plan, self._exact
        others = "streams in which other items of the user, or the budgets of others, change what is tested"
        if plan.release == "kms21":
            return (
                f"{others}, and all except a few fixed numbers of holders: for kms21 nothing here shows that no other "
                "stream is worse"
            )
        sides = (exact.adding, exact.removing)
        items = exact.worst.items
        limits = []
        if items < min(self._enough_rounds, plan.queries_per_user):
            limits.append(f"streams that show the user on more than {items:,} items")
        ceiling = max(side.ceiling_delta or 0.0 for side in sides)
        if all(side.is_settled for side in sides):
            limits.append(f"{others}: by the theorem in docs/audit.md none on {items:,} items attains more")
        else:
            limits.append(
                f"{others} within a window: none on {items:,} items attains a delta above {ceiling:.4g}, by the "
                f"theorem in docs/audit.md; whether one attains more than the {exact.worst.attained:.4g} above is open"
            )
        return "; ".join(limits)


def stream_text(stream: AttackStream, plan: ChargingPlan) -> str:
    """What the adversary does, in words."""
    many = f"in up to {stream.rounds:,} windows"
    if stream.items_per_window > 1 and (stream.rounds > plan.schedule.horizon or not stream.is_static):
        many = f"on up to {stream.rounds:,} items, {stream.items_per_window:,} of them in each window"
    ending = f"{many}, until the user is excluded"
    where = f"an item with {_distance_text(stream.distance, plan)}"
    if stream.is_static:
        return f"{where}, {ending}"
    world = "with" if stream.adds_user else "without"
    return (
        f"{where}; once what was published is over e^{stream.switch_loss:.4g} times likelier {world} the user, "
        f"{_distance_text(stream.later_distance, plan)} instead; {ending}"
    )


def _side_record(side: ChargedAudit, plan: ChargingPlan) -> dict[str, Any]:
    return {
        "stream": {**dataclasses.asdict(side.stream), "in_words": stream_text(side.stream, plan)},
        "delta_at_claimed_epsilon": side.delta,
        "epsilon_at_delta_accounting": side.epsilon,
        "best_adaptive_delta": side.best_delta,
        "best_adaptive_delta_with_half_the_rounds": side.best_delta_of_half,
        "no_adversary_exceeds": None
        if side.ceiling_delta is None
        else {"delta_at_claimed_epsilon": side.ceiling_delta, "items": side.items},
        "best_static": {"distance": side.static_distance, "delta_at_claimed_epsilon": side.static_delta},
        "curve": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in side.curve],
    }


def _plan_text(plan: ChargingPlan) -> str:
    zone = f" to {plan.threshold + plan.zone_width - 1:,} charged" if plan.zone_width else ""
    return (
        f"Plan {plan.fingerprint[:16]}: {plan.release}, noise of scale {plan.noise_scale:.4g}, threshold "
        f"{plan.threshold:,}{zone}, {plan.hits_per_user:,} hits per user, {plan.max_items_per_user:,} items per user "
        f"and window. Noise by the accountant {plan.accountant}."
    )


def _exact_table(plan: ChargingPlan, exact: ExactAudit) -> Table:
    title = f"Exact: delta at epsilon {plan.epsilon:g}, and epsilon at that share of delta"
    table = table_of(title, ("claimed", "attained", "ratio", "epsilon"))
    rows = [
        ("charged results, user added", plan.delta_accounting, exact.adding.attained, exact.adding.epsilon),
        ("charged results, user removed", plan.delta_accounting, exact.removing.attained, exact.removing.epsilon),
        ("items the user holds alone", plan.delta_open, exact.lone_delta, None),
        ("both together", plan.delta, exact.together_delta, exact.together_epsilon),
    ]
    for name, claimed, attained, epsilon in rows:
        at = "" if epsilon is None else f"{rounded_down(epsilon)} of {plan.epsilon:g}"
        add_claim(table, name, claimed, attained, at)
    table.add_row("hash collisions, sampled noise", f"{plan.delta_hash + plan.delta_sampling:.2g}", "not tried", "", "")
    worst = max(exact.running, key=lambda figure: figure.delta)
    name = f"running figure, cut at {worst.hits:,} hit{'s' if worst.hits > 1 else ''}"
    add_claim(table, name, plan.delta_accounting, worst.delta, f"at {worst.epsilon:.4f}")
    return table


def _confidence_text(worst: ChargedAudit) -> str:
    text = f"The worst that never changes its distance attains delta {worst.static_delta:.3g}"
    if worst.best_delta is None or worst.best_delta_of_half is None or worst.ceiling_delta is None:
        return text + "."
    text += (
        f"; the best adversary that chooses a distance for each window {worst.best_delta:.4g}, in half as many windows "
        f"{worst.best_delta_of_half:.3g}. "
    )
    if worst.is_settled:
        return text + f"No adversary at all attains more on {worst.items:,} items."
    more = f", {100 * (worst.ceiling_delta / worst.attained - 1):.2g} % more" if worst.attained else ""
    return text + f"No adversary attains more than {worst.ceiling_delta:.4g} on {worst.items:,} items{more}."


def _distance_text(distance: int, plan: ChargingPlan) -> str:
    """The number of other holders, and how far that is from the threshold."""
    count = plan.threshold + distance
    others = f"{count:,} other holder{'' if count == 1 else 's'}"
    if distance == plan.zone_width - 1 and plan.zone_width:
        return f"{others}, one fewer than the upper edge of the zone"
    if distance == -1:
        return f"{others}, one fewer than the threshold"
    return f"{others}, {abs(distance):,} {'more' if distance >= 0 else 'fewer'} than the threshold"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table_of(title: str, columns: Sequence[str] = ()) -> Table:
    """A table for rows that begin with a name. columns: titles of the numbers behind it; without any, no header."""
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False, show_header=bool(columns))
    if columns:
        table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def add_claim(table: Table, name: str, claimed: float, attained: float, *more: str, rounding: float = 0.0) -> None:
    """A row of what is claimed, what of it is attained, and more. In red if it is more than that, but for rounding."""
    if not claimed:
        table.add_row(name, "0", "0")  # a public domain
        return
    ratio = "unbounded" if math.isinf(attained) else f"{math.floor(1000 * attained / claimed) / 1000:.3f}"
    style = "bold red" if attained > claimed * (1 + rounding) else None
    table.add_row(name, f"{claimed:.4g}", f"{attained:.4g}", ratio, *more, style=style)


def rounded_down(epsilon: float) -> str:
    """Four decimals, more if it is very small."""
    if not math.isfinite(epsilon):
        return "unbounded"
    if epsilon < 0.01:
        return f"{epsilon * (1 - 5e-4):.3g}"
    return f"{math.floor(1e4 * epsilon) / 1e4:.4f}"


def fields_of(plan: ReleasePlan, *names: str) -> dict[str, Any]:
    """For JSON."""
    return {name: getattr(plan, name) for name in names}
