"""The result of a privacy audit of a plan in which users pay for looks, mode `looks`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from rich.table import Table

from dp_transforms.audit.exact_looks import MOST_FEW, AuditedPrice, LooksExactAudit
from dp_transforms.audit.payments import PaymentAudit
from dp_transforms.audit.sampled_looks import LooksDesign
from dp_transforms.audit.statistics import SampledAudit
from dp_transforms.cli.audit_report import AuditReport, SampledParts, add_claim, finite, table_of
from dp_transforms.plan.plan import Plan

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


@dataclasses.dataclass(frozen=True)
class LooksReport(AuditReport):
    plan: Plan
    exact: LooksExactAudit
    payments: PaymentAudit | None = None
    sampled: SampledAudit[LooksDesign] | None = None

    @property
    def violations(self) -> list[str]:
        parts = (self.exact, self.payments, self.sampled)
        return [text for part in parts if part is not None for text in part.violations]

    def plan_text(self) -> str:
        plan, looks = self.plan, self.plan.paid_looks
        known = "all items known" if plan.domain_size else f"{plan.known_threshold:,} for known items"
        further = ""
        if plan.paid_hits is not None:
            further = (
                f" Users with {plan.hits_from:,} looks or more may pay for {plan.hits_per_user:,} hits, "
                f"{plan.paid_hits.units / looks.purse:.3g} of a purse each, and then for looks of weight "
                f"{plan.paid_hits.weights[0]:,} to {plan.paid_hits.weights[-1]:,}."
            )
        if plan.counts is not None:
            further = (
                f" The {plan.counts.items:,} largest items of a window are counted, of a user up to "
                f"{plan.counts.per_user:,} pairs, {plan.counts.units / looks.purse:.3g} of a purse each, with noise of "
                f"scale {plan.counts.scale:,}."
            )
        return (
            f"Plan {plan.fingerprint[:16]}: names, noise of shape {looks.shape:g} and scale {looks.scale:,}, weights "
            f"{looks.weights[0]:,} to {looks.weights[-1]:,}, threshold {plan.threshold:,} ({known}), levels every "
            f"{looks.spacing:,}, at most {looks.most_looks:,} looks per user. A full purse is a divergence of "
            f"{looks.budget:.4g} at order {looks.order:.4g}.{further}"
        )

    def exact_table(self) -> Table:
        plan, exact = self.plan, self.exact
        title = f"Exact: divergence at order {plan.paid_looks.order:.4g}; delta at epsilon {plan.epsilon:g}"
        table = table_of(title, ("claimed", "attained", "ratio"))

        add = functools.partial(add_claim, table, error=1e-12)
        price = exact.worst_price
        who = ", for hits" if price.pays_hits else ""
        worst = f"worst of {exact.prices:,}: weight {price.weight:,}{who}"
        add(f"price of a look, {worst}", price.claimed, price.look.divergence)
        if plan.counts is not None:
            add("price of a count", exact.count_claimed, exact.count)
        add("delta of a full purse", plan.shares.paid, exact.purse_delta * (1 - 1e-7))
        for few in exact.few:
            add(f"{few.looks} adaptive look{'s' if few.looks > 1 else ''}", plan.shares.paid, few.delta)
        for static in (each for each in exact.static if each.looks > 1):
            add(f"{static.looks:,} equal looks", plan.shares.paid, static.delta)
        lone = "items the user holds alone" + (f", {exact.lone_looks:,} looks" if plan.delta_open else "")
        add(lone, plan.delta_open, exact.lone_delta)
        add("both together", plan.delta, exact.together_delta)
        table.add_row(
            "hash collisions, sampled noise", f"{plan.shares.hash + plan.shares.sampling:.2g}", "not tried", ""
        )
        return table

    def worst_texts(self) -> list[str]:
        price, few = self.exact.worst_price, max(self.exact.few, key=lambda each: each.delta)
        weights = ", then ".join(f"{weight:,}" for weight in few.weights)
        return [
            f"The worst count for that price is {_margin_text(price.look.margin)} (user "
            f"{'added' if price.look.adds_user else 'removed'}). The worst adaptive stream has "
            f"looks of weight {weights} until an item is named, at first where others are "
            f"{_margin_text(few.margins[0])} (user {'added' if few.adds_user else 'removed'})."
        ]

    def not_tried(self) -> list[str]:
        plan, exact = self.plan, self.exact
        tried = exact.static[-1].looks
        limits: list[str] = []
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
        limits += (*_OF_COUNTS,) if plan.counts else ()
        if plan.paid_looks.activity_epsilon:
            limits.append("the histogram of activity from which the plan was made: it has tests of its own")
        return [*limits, *_NEVER_TRIED]

    def record_of_parts(self) -> dict[str, Any]:
        exact = self.exact
        return {
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
            "payments": None if self.payments is None else _plain(dataclasses.asdict(self.payments)),
        }

    def sampled_parts(self, sampled: SampledAudit[LooksDesign]) -> SampledParts:
        design = sampled.design
        return SampledParts(
            note="The runs have the noise, the weights, the purse and the spacing of the plan; thresholds and counts "
            "are smaller by the same number, since only their difference matters.",
            event=f"{design.event} of {design.looks} items named" if design.looks > 1 else "the item is named",
            agreement=f"agreement with the exact law, {sampled.tests} tests",
            adds_user=True,
            stream={name: getattr(design, name) for name in ("looks", "others", "weight", "margin")},
            of_event={"named_at_least": design.event},
            of_tests={"tests": sampled.tests, "worst_test": sampled.worst_test},
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
        "attained_divergence": finite(look.divergence),
        "margin": look.margin,
        "adds_user": look.adds_user,
        "pays_hits": price.pays_hits,
    }


def _margin_text(margin: int) -> str:
    return f"{abs(margin):,} {'below' if margin >= 0 else 'above'} the threshold"
