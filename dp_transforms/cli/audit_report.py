"""The result of a privacy audit in words, as tables and as JSON, by what users pay for: hits, or contributions."""

from __future__ import annotations

import abc
import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.audit.exact_hits import ChargedAudit, ExactAudit
from dp_transforms.audit.exact_looks import MOST_FEW, AuditedPrice, LooksExactAudit
from dp_transforms.audit.few_looks import FewLooks
from dp_transforms.audit.mechanism import Mechanism
from dp_transforms.audit.round_looks import RoundLooks
from dp_transforms.audit.streams import AttackStream, rounds_until_excluded
from dp_transforms.plan.plan import Plan

FORMAT_VERSION = 1


class AuditReport(abc.ABC):
    """What was found of a plan."""

    plan: Plan
    exact: ExactAudit | LooksExactAudit

    @property
    def violations(self) -> list[str]:
        """A sentence for each claim that does not hold."""
        return [*self.exact.violations]

    @abc.abstractmethod
    def plan_text(self) -> str:
        """The plan in a few words."""

    @abc.abstractmethod
    def exact_table(self) -> Table:
        """What is attained, against the claims."""

    @abc.abstractmethod
    def worst_texts(self) -> list[str]:
        """What attains most."""

    @abc.abstractmethod
    def not_tried(self) -> list[str]:
        """What a privacy audit of this plan says nothing about."""

    @abc.abstractmethod
    def record_of_parts(self) -> dict[str, Any]:
        """All numbers, for JSON."""

    def print(self, console: Console) -> None:
        """The report for people."""
        console.print(Text(self.plan.guarantee, style="bold"), soft_wrap=True)
        console.print(self.plan_text(), soft_wrap=True)
        console.print(self.exact_table())
        for text in self.worst_texts():
            console.print(text, soft_wrap=True)
        console.print(Text("\nNot tried:", style="bold"))
        for limit in self.not_tried():
            console.print(f"- {limit}.", soft_wrap=True)
        console.print()
        verdict, style = "PASSED: nothing that was computed exceeds a claim of this plan.", "bold green"
        if self.violations:
            verdict, style = f"VIOLATED: {'; '.join(self.violations)}.", "bold red"
        console.print(Text(verdict, style=style), soft_wrap=True)

    def record(self) -> dict[str, Any]:
        """All numbers. What is unbounded is null."""
        violations = self.violations
        return {
            "format_version": FORMAT_VERSION,
            "verdict": "violated" if violations else "passed",
            "violations": violations,
            "plan": json.loads(self.plan.to_json()),
            **self.record_of_parts(),
            "not_tried": self.not_tried(),
        }


def _table_of(title: str, columns: Sequence[str]) -> Table:
    """A table for rows that begin with a name. columns: titles of the numbers behind it."""
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _add_claim(table: Table, name: str, claimed: float, attained: float, *more: str, error: float = 0.0) -> None:
    """A row of what is attained against what is claimed, and a ratio. more: further cells. error: relative.

    Nothing is claimed, nor attained, of items that one user holds alone among public items.
    """
    if not claimed:
        table.add_row(name, "0", "0", "", *more)
        return
    ratio = "unbounded" if math.isinf(attained) else f"{math.floor(1000 * attained / claimed) / 1000:.3f}"
    style = "bold red" if attained > claimed * (1 + error) else None
    table.add_row(name, f"{claimed:.4g}", f"{attained:.4g}", ratio, *more, style=style)


def _finite(value: float) -> float | None:
    """As JSON can hold it."""
    return value if math.isfinite(value) else None


def _rounded_down(epsilon: float) -> str:
    """Four decimals, more if it is very small."""
    if not math.isfinite(epsilon):
        return "unbounded"
    if epsilon < 0.01:
        return f"{epsilon * (1 - 5e-4):.3g}"
    return f"{math.floor(1e4 * epsilon) / 1e4:.4f}"


_NEVER_TRIED = (
    "the code itself: counting, charging and drawing are held against these laws by tests, and so are reading, "
    "hashing, Beam, retries, late events and what one part of a run hands to the next",
    "delta for hash collisions and for the sampled noise: far below anything that can be observed",
    "a log that shares users with other runs, a user that is several people, groups of users",
    "the secrecy of the noise key, timing, and what only the operator sees",
)


@dataclasses.dataclass(frozen=True)
class HitsReport(AuditReport):
    plan: Plan
    exact: ExactAudit

    @property
    def _enough_items(self) -> int:
        """So many exclude a user near the threshold, or are all that the plan has room for."""
        return min(rounds_until_excluded(Mechanism.of_plan(self.plan)), self.plan.queries_per_user)

    def plan_text(self) -> str:
        plan, hits = self.plan, self.plan.charged_hits
        zone = f" to {plan.threshold + hits.zone_width - 1:,} charged" if hits.zone_width else ""
        return (
            f"Plan {plan.fingerprint[:16]}: {plan.charge_in_words}, noise of scale {hits.noise.scale:.4g}, threshold "
            f"{plan.threshold:,}{zone}, {hits.per_user:,} hits per user, {hits.max_items_per_user:,} items per "
            f"user and window{f', under each of at most {hits.keys:,} keys' if hits.keys > 1 else ''}."
        )

    def exact_table(self) -> Table:
        plan, exact = self.plan, self.exact
        title = f"Exact: delta at epsilon {plan.epsilon:g}, and epsilon at that share of delta"
        table = _table_of(title, ("claimed", "attained", "ratio", "epsilon"))

        add = functools.partial(_add_claim, table)
        for name, side in (("added", exact.adding), ("removed", exact.removing)):
            epsilon = f"{_rounded_down(side.epsilon)} of {plan.epsilon:g}"
            add(f"charged results, user {name}", plan.shares.paid, side.attained, epsilon)
        add("items the user holds alone", plan.delta_open, exact.lone_delta, "")
        epsilon = f"{_rounded_down(exact.together_epsilon)} of {plan.epsilon:g}"
        add("both together", plan.delta, exact.together_delta, epsilon)
        rest = f"{plan.shares.hash + plan.shares.sampling:.2g}"
        table.add_row("hash collisions, sampled noise", rest, "not tried", "", "")
        worst = max(exact.running, key=lambda figure: figure.delta)
        name = f"running figure, cut at {worst.hits:,} hit{'s' if worst.hits > 1 else ''}"
        add(name, plan.shares.paid, worst.delta, f"at {worst.epsilon:.4f}")
        return table

    def worst_texts(self) -> list[str]:
        worst = self.exact.worst
        texts = [
            f"The worst stream tried attains epsilon {_rounded_down(worst.epsilon)} at delta "
            f"{self.plan.shares.paid:.4g}: {_stream_text(worst.stream, self.plan)}.",
            _confidence_text(worst),
        ]
        if worst.items < self._enough_items:
            enough = rounds_until_excluded(Mechanism.of_plan(self.plan))
            texts.append(f"So few items do not exclude the user. --rounds {enough} would exclude it, and find more.")
        return texts

    def not_tried(self) -> list[str]:
        return [self._untried_streams(), *_NEVER_TRIED]

    def _untried_streams(self) -> str:
        """The ceilings hold by a theorem of docs/audit.md for so many items: no more is claimed than was computed."""
        others = "streams in which other items of the user, or the budgets of others, change what is tested"
        sides, worst = (self.exact.adding, self.exact.removing), self.exact.worst
        limits = []
        if worst.items < self._enough_items:
            limits.append(f"streams that show the user on more than {worst.items:,} items")
        if all(side.is_settled for side in sides):
            limits.append(f"{others}: by the theorem in docs/audit.md none on {worst.items:,} items attains more")
        else:
            ceiling = max(side.ceiling_delta for side in sides)
            limits.append(
                f"{others} within a window: none on {worst.items:,} items attains a delta above {ceiling:.4g}, by the "
                f"theorem in docs/audit.md; whether one attains more than the {worst.attained:.4g} above is open"
            )
        return "; ".join(limits)

    def record_of_parts(self) -> dict[str, Any]:
        exact = self.exact
        return {
            "exact": {
                "adding": self._side_record(exact.adding),
                "removing": self._side_record(exact.removing),
                "lone_items": {"delta": exact.lone_delta},
                "together": {
                    "delta_at_claimed_epsilon": exact.together_delta,
                    "epsilon_at_claimed_delta": _finite(exact.together_epsilon),
                },
                "running_figure": [dataclasses.asdict(figure) for figure in exact.running],
            },
        }

    def _side_record(self, side: ChargedAudit) -> dict[str, Any]:
        return {
            "stream": {**dataclasses.asdict(side.stream), "in_words": _stream_text(side.stream, self.plan)},
            "delta_at_claimed_epsilon": side.delta,
            "epsilon_at_delta_accounting": side.epsilon,
            "best_adaptive_delta": side.best_delta,
            "best_adaptive_delta_with_half_the_rounds": side.best_delta_of_half,
            "no_adversary_exceeds": {"delta_at_claimed_epsilon": side.ceiling_delta, "items": side.items},
            "best_static": {"distance": side.static_distance, "delta_at_claimed_epsilon": side.static_delta},
            "curve": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in side.curve],
        }


def _stream_text(stream: AttackStream, plan: Plan) -> str:
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


def _confidence_text(worst: ChargedAudit) -> str:
    text = (
        f"The worst that never changes its distance attains delta {worst.static_delta:.3g}; the best adversary that "
        f"chooses a distance for each window {worst.best_delta:.4g}, in half as many windows "
        f"{worst.best_delta_of_half:.3g}. "
    )
    if worst.is_settled:
        return text + f"No adversary at all attains more on {worst.items:,} items."
    more = f", {100 * (worst.ceiling_delta / worst.attained - 1):.2g} % more" if worst.attained else ""
    return text + f"No adversary attains more than {worst.ceiling_delta:.4g} on {worst.items:,} items{more}."


def _distance_text(distance: int, plan: Plan) -> str:
    """The number of other holders, and how far that is from the threshold."""
    count = plan.threshold + distance
    others = f"{count:,} other holder{'' if count == 1 else 's'}"
    if distance == plan.charged_hits.zone_width - 1 and plan.charged_hits.zone_width:
        return f"{others}, one fewer than the upper edge of the zone"
    if distance == -1:
        return f"{others}, one fewer than the threshold"
    return f"{others}, {abs(distance):,} {'more' if distance >= 0 else 'fewer'} than the threshold"


_OF_ROUNDS = (
    "other counts and weights in rounds than equal ones of up to 10 contributions, and of more than that one round "
    "alone; that no stream attains more than delta_tests is the theorem of docs/guarantee.md",
)


@dataclasses.dataclass(frozen=True)
class LooksReport(AuditReport):
    plan: Plan
    exact: LooksExactAudit

    def plan_text(self) -> str:
        plan, looks = self.plan, self.plan.paid_contributions
        followed = "all items public" if plan.domain_size else f"{plan.followed_threshold:,} for followed items"
        further = ""
        if len(plan.units_of_rounds) > 1:
            followed = "in the first round"
            shares = ", ".join(f"{100 * units / BUDGET_UNITS:.4g}" for units in plan.units_of_rounds)
            further = f" Rounds pay up to {shares} % of a user's budget, each for what earlier ones left unnamed."
        return (
            f"Plan {plan.fingerprint[:16]}: contributions, noise of shape {looks.shape:g} and scale {looks.scale:,}, "
            f"weights {looks.weights[0]:,} to {looks.weights[-1]:,}, threshold {plan.threshold:,} ({followed}), levels "
            f"every {looks.spacing:,}, at most {looks.most_tests:,} tests per user. A full budget is a divergence of "
            f"{looks.budget:.4g} at order {looks.order:.4g}.{further}"
        )

    def exact_table(self) -> Table:
        plan, exact = self.plan, self.exact
        title = f"Exact: divergence at order {plan.paid_contributions.order:.4g}; delta at epsilon {plan.epsilon:g}"
        table = _table_of(title, ("claimed", "attained", "ratio"))

        add = functools.partial(_add_claim, table, error=1e-12)
        price = exact.worst_price
        add(
            f"price of a test, worst of {exact.prices:,}: weight {price.weight:,}", price.claimed, price.look.divergence
        )
        add("delta of a full budget", plan.shares.paid, exact.purse_delta * (1 - 1e-7))
        for few in exact.few:
            add(f"{few.looks} adaptive test{'s' if few.looks > 1 else ''}", plan.shares.paid, few.delta)
        for pairs in exact.in_rounds:
            name = f"{pairs.pairs} contribution{'s' if pairs.pairs > 1 else ''} in all rounds"
            add(name, plan.shares.paid, pairs.delta)
        where = " in one round" if exact.in_rounds else ""
        for static in (each for each in exact.static if each.looks > 1):
            add(f"{static.looks:,} equal tests{where}", plan.shares.paid, static.delta)
        lone = "items the user holds alone" + (f", {exact.lone_looks:,} tests" if plan.delta_open else "")
        add(lone, plan.delta_open, exact.lone_delta)
        add("both together", plan.delta, exact.together_delta)
        table.add_row(
            "hash collisions, sampled noise", f"{plan.shares.hash + plan.shares.sampling:.2g}", "not tried", ""
        )
        return table

    def worst_texts(self) -> list[str]:
        tried: list[FewLooks | RoundLooks] = [*self.exact.few, *self.exact.in_rounds]
        look, worst = self.exact.worst_price.look, max(tried, key=lambda each: each.delta)
        weights = ", then ".join(f"{weight:,}" for weight in worst.weights)
        stream = f"The worst adaptive stream has tests of weight {weights} until an item is named, at first"
        margin = worst.margins[0]
        if isinstance(worst, RoundLooks):
            stream = f"The worst in all rounds are {worst.pairs} contributions, of weight {weights} while all are left,"
            stream += " in the last"
            margin = worst.margins[-1]
        return [
            f"The worst count for that price is {_margin_text(look.margin)} (user {_change_text(look.adds_user)}). "
            f"{stream} where others are {_margin_text(margin)} (user {_change_text(worst.adds_user)})."
        ]

    def not_tried(self) -> list[str]:
        exact, tried = self.exact, self.exact.tried
        limits: list[str] = []
        if exact.in_rounds:
            limits += _OF_ROUNDS
        elif tried > MOST_FEW:
            limits.append(
                f"adaptive streams of more than {MOST_FEW} tests: of more, only those with one weight and one count; "
                "that no stream attains more than delta_tests is the theorem of docs/guarantee.md"
            )
        if tried < exact.most_paid:
            limits.append(
                f"more than {tried:,} tests of a user on items of others, of the {exact.most_paid:,} that are paid"
            )
        return [*limits, *_NEVER_TRIED]

    def record_of_parts(self) -> dict[str, Any]:
        exact = self.exact
        return {
            "exact": {
                "worst_price": _price_record(exact.worst_price),
                "prices_compared": exact.prices,
                "full_purse": {"delta_at_claimed_epsilon": exact.purse_delta},
                "most_looks": exact.most_tests,
                "adaptive_looks": [_plain(dataclasses.asdict(each)) for each in exact.few],
                "equal_looks": [_plain(dataclasses.asdict(each)) for each in exact.static],
                "in_rounds": [_plain(dataclasses.asdict(each)) for each in exact.in_rounds],
                "lone_items": {"delta": exact.lone_delta, "looks": exact.lone_looks},
                "together": {"delta_at_claimed_epsilon": exact.together_delta},
            },
        }


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Without what the record says at its head; delta of a stream is at the claimed epsilon."""
    record.pop("violations", None)
    if "delta" in record:
        record["delta_at_claimed_epsilon"] = record.pop("delta")
    return record


def _price_record(price: AuditedPrice) -> dict[str, Any]:
    look = price.look
    return {
        "weight": price.weight,
        "units": price.units,
        "claimed_divergence": price.claimed,
        "attained_divergence": _finite(look.divergence),
        "margin": look.margin,
        "adds_user": look.adds_user,
    }


def _change_text(adds_user: bool) -> str:
    return "added" if adds_user else "removed"


def _margin_text(margin: int) -> str:
    return f"{abs(margin):,} {'below' if margin >= 0 else 'above'} the threshold"
