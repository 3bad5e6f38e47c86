"""The result of a privacy audit of release mode `names`: in words, as tables for a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from rich.console import Console
from rich.table import Table

from dp_transforms.audit.names.exact import MOST_FEW, AuditedPrice, NamesExactAudit
from dp_transforms.audit.names.payments import PaymentAudit
from dp_transforms.audit.names.sampled import NamesSampledAudit
from dp_transforms.cli.audit_report import AuditReport, SampledEvent, add_claim, fields_of, table_of
from dp_transforms.plan.names_plan import NamesPlan

_NEVER_TRIED = (
    "noise that does not follow the weights of the holders, but who they are",
    "reading logs, hashing ids, Beam, shards, state that engines keep, retries and late events: these have tests of "
    "their own",
    "delta for hash collisions and for the sampled noise: far below anything that can be observed",
    "a log that shares users with other runs, a user that is several people, groups of users",
    "the secrecy of the noise key, timing, and what only the operator sees",
)
_OF_HITS = (
    "streams in which a user goes from one price list to the other: in payments alone",
    "hits of a group in a stream, and hits that one part of a run hands to the next: these have tests of their own",
)
_OF_COUNTS = (
    "streams of counts and looks together: each is held against its price, and that a purse pays for both is proved in "
    "docs/purse.md, section 11",
    "which of the named items are counted: tests show that it follows from the names alone",
)


class NamesReport(AuditReport):
    """Of a plan of release mode `names`."""

    sampled_note = (
        "The runs have the noise, the weights, the purse and the spacing of the plan; thresholds and counts are "
        "smaller by the same number, since only their difference matters."
    )

    def __init__(
        self,
        plan: NamesPlan,
        exact: NamesExactAudit,
        payments: PaymentAudit | None = None,
        sampled: NamesSampledAudit | None = None,
    ) -> None:
        super().__init__(plan, [exact, payments], sampled)
        self._plan, self._exact, self._payments, self._sampled = plan, exact, payments, sampled

    def print_exact(self, console: Console) -> None:
        console.print(_plan_text(self._plan), soft_wrap=True)
        console.print(_exact_table(self._plan, self._exact))
        console.print(_worst_text(self._plan, self._exact), soft_wrap=True)
        if self._payments is not None:
            console.print(_payments_table(self._payments))

    def not_tried(self) -> tuple[str, ...]:
        plan, exact = self._plan, self._exact
        tried = exact.static[-1].looks
        limits = []
        if tried > MOST_FEW:
            limits.append(
                f"adaptive streams of more than {MOST_FEW} looks: of more, only those with one weight and one count; "
                "that no stream attains more than delta_looks is the theorem of docs/purse.md"
            )
        if tried < exact.most_paid:
            limits.append(
                f"more than {tried:,} looks of a user on items of others, of the {exact.most_paid:,} that are paid"
            )
        limits += (*_OF_HITS,) if plan.hits_per_user else ()
        limits += (*_OF_COUNTS,) if plan.counts_for else ()
        if plan.activity_epsilon:
            limits.append("the histogram of activity from which the plan was made: it has tests of its own")
        return (*limits, *_NEVER_TRIED)

    def exact_records(self) -> dict[str, Any]:
        plan, exact, payments = self._plan, self._exact, self._payments
        noise = ("fingerprint", "release", "shape", "scale", "order", "budget", "most_looks", "hits_per_user")
        thresholds = ("threshold", "known_threshold", "forget_after", "spacing", "domain_size")
        counts = ("counts_for", "counts_per_user", "count_scale")
        shares = ("epsilon", "delta", "delta_looks", "delta_open", "delta_sampling", "delta_hash")
        return {
            "plan": {
                **fields_of(plan, *noise, *thresholds, *counts),
                "weights": [plan.weights[0], plan.weights[-1]],
                "horizon": plan.schedule.horizon,
            },
            "claimed": fields_of(plan, *shares),
            "exact": {
                "worst_price": _price_record(exact.worst_price),
                "prices_compared": exact.prices,
                "count": {"claimed_divergence": exact.count_claimed, "attained_divergence": exact.count},
                "full_purse": {"delta_at_claimed_epsilon": exact.purse_delta},
                "most_looks": exact.most_looks,
                "adaptive_looks": [_plain(dataclasses.asdict(each)) for each in exact.few],
                "equal_looks": [_plain(dataclasses.asdict(each)) for each in exact.static],
                "lone_items": {"delta": exact.lone_delta, "looks": exact.lone_looks},
                "together": {"delta_at_claimed_epsilon": exact.together_delta},
            },
            "payments": None if payments is None else _plain(dataclasses.asdict(payments)),
        }

    def sampled_event(self) -> SampledEvent:
        assert self._sampled is not None
        sampled, design = self._sampled, self._sampled.design
        return SampledEvent(
            {name: getattr(design, name) for name in ("looks", "others", "weight", "margin")},
            f"{design.event} of {design.looks} items named" if design.looks > 1 else "the item is named",
            {"named_at_least": design.event},
            (("with", sampled.p_seen, design.p), ("without", sampled.q_seen, design.q)),
            {"tests": sampled.tests, "worst_test": sampled.worst_test},
        )


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
        "attained_divergence": look.divergence if math.isfinite(look.divergence) else None,
        "margin": look.margin,
        "adds_user": look.adds_user,
        "pays_hits": price.pays_hits,
    }


def _plan_text(plan: NamesPlan) -> str:
    known = "all items known" if plan.domain_size else f"{plan.known_threshold:,} for known items"
    further = ""
    if plan.hits_per_user:
        further = (
            f" Users with {plan.hits_from:,} looks or more may pay for {plan.hits_per_user:,} hits, "
            f"{plan.hit_units / plan.purse:.3g} of a purse each, and then for looks of weight "
            f"{plan.hit_weights[0]:,} to {plan.hit_weights[-1]:,}."
        )
    if plan.counts_for:
        further = (
            f" The {plan.counts_for:,} largest items of a window are counted, of a user up to {plan.counts_per_user:,} "
            f"pairs, {plan.count_units / plan.purse:.3g} of a purse each, with noise of scale {plan.count_scale:,}."
        )
    return (
        f"Plan {plan.fingerprint[:16]}: names, noise of shape {plan.shape:g} and scale {plan.scale:,}, weights "
        f"{plan.weights[0]:,} to {plan.weights[-1]:,}, threshold {plan.threshold:,} ({known}), levels every "
        f"{plan.spacing:,}, at most {plan.most_looks:,} looks per user. A full purse is a divergence of "
        f"{plan.budget:.4g} at order {plan.order:.4g}.{further}"
    )


def _exact_table(plan: NamesPlan, exact: NamesExactAudit) -> Table:
    title = f"Exact: divergence at order {plan.order:.4g}; delta at epsilon {plan.epsilon:g}"
    table = table_of(title, ("claimed", "attained", "ratio"))
    add = functools.partial(add_claim, table, rounding=1e-12)
    price = exact.worst_price
    who = ", for hits" if price.pays_hits else ""
    worst = f"worst of {exact.prices:,}: weight {price.weight:,}{who}"
    add(f"price of a look, {worst}", price.claimed, price.look.divergence)
    if plan.counts_for:
        add("price of a count", exact.count_claimed, exact.count)
    add("delta of a full purse", plan.delta_looks, exact.purse_delta * (1 - 1e-7))
    for few in exact.few:
        add(f"{few.looks} adaptive look{'s' if few.looks > 1 else ''}", plan.delta_looks, few.delta)
    for static in (each for each in exact.static if each.looks > 1):
        add(f"{static.looks:,} equal looks", plan.delta_looks, static.delta)
    looks = f", {exact.lone_looks:,} looks" if plan.delta_open else ""
    add(f"items the user holds alone{looks}", plan.delta_open, exact.lone_delta)
    add("both together", plan.delta, exact.together_delta)
    table.add_row("hash collisions, sampled noise", f"{plan.delta_hash + plan.delta_sampling:.2g}", "not tried", "")
    return table


def _worst_text(plan: NamesPlan, exact: NamesExactAudit) -> str:
    price, few = exact.worst_price, max(exact.few, key=lambda each: each.delta)
    weights = ", then ".join(f"{weight:,}" for weight in few.weights)
    return (
        f"The worst count for that price is {_margin_text(price.look.margin)} (user "
        f"{'added' if price.look.adds_user else 'removed'}). The worst adaptive stream has "
        f"looks of weight {weights} until an item is named, at first where others are {_margin_text(few.margins[0])} "
        f"(user {'added' if few.adds_user else 'removed'})."
    )


def _margin_text(margin: int) -> str:
    return f"{abs(margin):,} {'below' if margin >= 0 else 'above'} the threshold"


def _payments_table(payments: PaymentAudit) -> Table:
    table = table_of(f"Payments: {payments.users:,} users with {payments.looks:,} pairs, through the real code")
    for name, share in (("a replay", payments.replay_share), ("a stream", payments.stream_share)):
        text = f"{math.floor(1e4 * share) / 1e4:.4f} of a purse" if share <= 1 else f"{share:.4f} purses"
        table.add_row(f"most that a user spends in {name}", text, style="bold red" if share > 1 else None)
    changed = any("events of others" in text for text in payments.violations)
    table.add_row(
        "weights that change with the events of others",
        "some" if changed else "0",
        style="bold red" if changed else None,
    )
    return table
