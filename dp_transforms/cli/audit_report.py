"""The result of a privacy audit in words, as tables for a terminal, and as a record for JSON."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dp_transforms.audit.attack_streams import AttackStream
from dp_transforms.audit.claim import Mechanism
from dp_transforms.audit.exact import ChargedAudit, ExactAudit
from dp_transforms.audit.sampled import FALSE_ALARM, SampledAudit
from dp_transforms.audit.worst_streams import rounds_until_excluded
from dp_transforms.cli.audit_tables import rounded_down, table_of, verdict
from dp_transforms.plan.charging_plan import ChargingPlan

FORMAT_VERSION = 1
_NEVER_TRIED = (
    "noise that does not follow the holders, and hits that one part of a run hands to the next: these have tests of "
    "their own",
    "reading logs, hashing ids, bounding contributions, Beam, retries and late events: these have tests of their own",
    "delta for hash collisions and for the sampled noise: far below anything that can be observed",
    "a log that shares users with other runs, a user that is several people, groups of users",
    "the secrecy of the noise key, timing, and what only the operator sees",
)
_SAMPLED_NOTE = (
    "The runs have the noise, the zone and the hits of the plan; threshold and counts are smaller by the same number, "
    "since only their difference matters. The user holds one item a window, in as many windows as it takes or the plan "
    "has."
)


def print_audit(
    console: Console, plan: ChargingPlan, exact: ExactAudit, sampled: SampledAudit | None, *, enough_rounds: int
) -> None:
    """The report for people. enough_rounds: how many windows exclude a user near the threshold."""
    console.print(Text(plan.guarantee, style="bold"), soft_wrap=True)
    console.print(_plan_text(plan), soft_wrap=True)
    console.print(_exact_table(plan, exact))
    worst = exact.worst
    console.print(
        f"The worst stream tried attains epsilon {rounded_down(worst.epsilon)} at delta {plan.delta_accounting:.4g}: "
        f"{stream_text(worst.stream, plan)}.",
        soft_wrap=True,
    )
    console.print(_confidence_text(worst), soft_wrap=True)
    if worst.items < min(enough_rounds, plan.queries_per_user):
        console.print(
            f"So few items do not exclude the user. --rounds {enough_rounds} would exclude it, and find more.",
            soft_wrap=True,
        )
    if sampled is not None:
        console.print(_sampled_table(sampled, plan))
        console.print(_SAMPLED_NOTE, soft_wrap=True)
    else:
        console.print("The real code was not run (--runs 0).")
    console.print(Text("\nNot tried:", style="bold"))
    for limit in not_tried(plan, exact):
        console.print(f"- {limit}.", soft_wrap=True)
    console.print()
    violations = [*exact.violations, *(sampled.violations if sampled else ())]
    console.print(verdict(violations, is_sampled=sampled is not None), soft_wrap=True)


def not_tried(plan: ChargingPlan, exact: ExactAudit) -> tuple[str, ...]:
    """What a privacy audit of this plan says nothing about."""
    limits = [_untried_streams(plan, exact)]
    if plan.domain_size:
        limits.append(
            "how items of the domain that nobody holds are drawn (draw_zero_items): every item of a sampled run has "
            "holders; that draw has tests of its own"
        )
    return (*limits, *_NEVER_TRIED)


def _untried_streams(plan: ChargingPlan, exact: ExactAudit) -> str:
    """The ceilings hold by a theorem of docs/audit.md for a number of items: no more is claimed than was computed."""
    others = "streams in which other items of the user, or the budgets of others, change what is tested"
    if plan.release == "kms21":
        return (
            f"{others}, and all except a few fixed numbers of holders: for kms21 nothing here shows that no other "
            "stream is worse"
        )
    sides = (exact.adding, exact.removing)
    items = exact.worst.items
    limits = []
    if items < min(rounds_until_excluded(Mechanism.of_plan(plan)), plan.queries_per_user):
        limits.append(f"streams that show the user on more than {items:,} items")
    ceiling = max(side.ceiling_delta or 0.0 for side in sides)
    if all(side.is_settled for side in sides):
        limits.append(f"{others}: by the theorem in docs/audit.md none on {items:,} items attains more")
    else:
        limits.append(
            f"{others} within a window: none on {items:,} items attains a delta above {ceiling:.4g}, by the theorem in "
            f"docs/audit.md; whether one attains more than the {exact.worst.attained:.4g} above is open"
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


def as_record(plan: ChargingPlan, exact: ExactAudit, sampled: SampledAudit | None) -> dict[str, Any]:
    """All numbers. An unbounded epsilon is null."""
    violations = [*exact.violations, *(sampled.violations if sampled else ())]
    return {
        "format_version": FORMAT_VERSION,
        "verdict": "violated" if violations else "passed",
        "violations": violations,
        "plan": {
            "fingerprint": plan.fingerprint,
            "release": plan.release,
            "accountant": plan.accountant,
            "noise_scale": plan.noise_scale,
            "epsilon_per_query": plan.epsilon_per_query,
            "threshold": plan.threshold,
            "zone_width": plan.zone_width,
            "hits_per_user": plan.hits_per_user,
            "max_items_per_user": plan.max_items_per_user,
            "horizon": plan.schedule.horizon,
        },
        "claimed": {
            "epsilon": plan.epsilon,
            "delta": plan.delta,
            "delta_accounting": plan.delta_accounting,
            "delta_open": plan.delta_open,
            "delta_sampling": plan.delta_sampling,
            "delta_hash": plan.delta_hash,
        },
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
        "sampled": None if sampled is None else _sampled_record(sampled, plan),
        "not_tried": list(not_tried(plan, exact)),
    }


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


def _sampled_record(sampled: SampledAudit, plan: ChargingPlan) -> dict[str, Any]:
    sampling = sampled.design
    return {
        "runs_in_each_world": sampling.runs,
        "stream": {**dataclasses.asdict(sampling.stream), "in_words": stream_text(sampling.stream, plan)},
        "event": {
            "loss_at_least": sampling.event_loss,
            "seen_without_user": sampled.p_seen,
            "seen_with_user": sampled.q_seen,
            "expected_without_user": sampling.runs * sampling.p,
            "expected_with_user": sampling.runs * sampling.q,
        },
        "epsilon_lower_bound": sampled.epsilon,
        "confidence": sampled.confidence,
        "expected_lower_bound": sampling.expected_epsilon,
        "fit": {"p_value": sampled.p_value, "false_alarm": FALSE_ALARM},
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
        if not claimed:
            table.add_row(name, "0", "0", "", "")  # a public domain
            continue
        table.add_row(
            name,
            f"{claimed:.4g}",
            f"{attained:.4g}",
            f"{math.floor(1000 * attained / claimed) / 1000:.3f}",
            "" if epsilon is None else f"{rounded_down(epsilon)} of {plan.epsilon:g}",
            style="bold red" if attained > claimed else None,
        )
    table.add_row("hash collisions, sampled noise", f"{plan.delta_hash + plan.delta_sampling:.2g}", "not tried", "", "")
    worst = max(exact.running, key=lambda figure: figure.delta)
    table.add_row(
        f"running figure, cut at {worst.hits:,} hit{'s' if worst.hits > 1 else ''}",
        f"{plan.delta_accounting:.4g}",
        f"{worst.delta:.4g}",
        f"{math.floor(1000 * worst.delta / plan.delta_accounting) / 1000:.3f}",
        f"at {worst.epsilon:.4f}",
        style="bold red" if worst.delta > plan.delta_accounting else None,
    )
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


def _sampled_table(sampled: SampledAudit, plan: ChargingPlan) -> Table:
    sampling = sampled.design
    percent = f"{100 * sampled.confidence:g} %"
    table = table_of(f"Sampled: {sampling.runs:,} runs of the real code in each world")
    table.add_row(
        "epsilon is at least", f"{rounded_down(sampled.epsilon)}, with {percent} confidence, of {plan.epsilon:g}"
    )
    table.add_row("to be expected of so many runs", rounded_down(sampling.expected_epsilon))
    seen = (("without the user", sampled.p_seen, sampling.p), ("with the user", sampled.q_seen, sampling.q))
    for world, count, probability in seen:
        table.add_row(
            f"loss >= {sampling.event_loss:.4f}, {world}", f"{count:,}; {sampling.runs * probability:,.0f} expected"
        )
    table.add_row(
        "agreement with the exact law",
        f"p = {sampled.p_value:.2g}; alarm below {FALSE_ALARM:g}",
        style="bold red" if sampled.p_value < FALSE_ALARM else None,
    )
    return table


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
