"""``shh explain --html``: one page on a plan, to attach to an approval. It loads nothing and runs nothing."""

from __future__ import annotations

import datetime

from dp_transforms.checks import exact
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.views.page.html_text import asset, defined, document, escaped, listed
from dp_transforms.views.page.promise import budget_of, chance, in_three_sentences, not_covered, one_in
from dp_transforms.views.page.report_page import sentence_case, unseen_table
from dp_transforms.views.plan_words import in_a_sentence
from dp_transforms.views.report_table import length_text
from dp_transforms.views.time_axis import local_text

_PUBLISHED = {
    "names": "names of items that many users have, with sizes: at least so many users",
    "labels": "names of items that many users have; near the threshold with a noisy number of users",
    "counts": "names of items that many users have, with noisy numbers of users",
    "kms21": "names of items that many users have",
}


def plan_facts(plan: ReleasePlan) -> list[tuple[str, str]]:
    """What an approval is about, name by name."""
    schedule = plan.schedule
    budget = budget_of(plan, ())
    assert budget is not None
    facts = [
        ("epsilon", f"{exact(plan.epsilon)} for each user, over the whole run"),
        ("delta", f"{exact(plan.delta)} ({one_in(plan.delta)}) for each user, over the whole run"),
        ("a guess", f"whether a person is in the log is right with {chance(budget)} at most, from an even chance"),
        ("unit of privacy", "one user id with all of its events in the run"),
        ("neighbours", "two logs of which one has one user more: adding or removing a user"),
        (
            "horizon",
            f"{schedule.horizon:,} windows of {length_text(schedule.window_seconds * 1_000_000)}, one every"
            f" {length_text(schedule.slide_seconds * 1_000_000)}",
        ),
        (
            "range (UTC)",
            f"{local_text(schedule.start_seconds * 1_000_000, datetime.UTC)} to"
            f" {local_text(schedule.end_seconds * 1_000_000, datetime.UTC)}, the end excluded",
        ),
        ("what is published", f"{_PUBLISHED[plan.release]} (mode {plan.release})"),
        ("declared bounds", f"at most {plan.max_users:,} users and {plan.max_items:,} items"),
    ]
    if earlier := getattr(plan, "activity_epsilon", 0.0):
        facts.insert(
            1, ("epsilon before", f"{exact(earlier)} for the histogram of activity that the plan is made from")
        )
    if plan.domain_size:
        facts.append(("known items", f"{plan.domain_size:,}, a public list; SHA-256 {plan.domain_fingerprint[:16]}…"))
    if size_error := getattr(plan, "size_error", 0.0):
        facts.append(("stated sizes", f"one or more is too large with a probability of at most {one_in(size_error)}"))
    return [*facts, ("fingerprint", plan.fingerprint)]


def fact_sheet(plan: ReleasePlan) -> str:
    """The sheet as HTML: a function of the plan alone."""
    budget = budget_of(plan, ())
    assert budget is not None
    return document(
        "sheet.html",
        asset("sheet.css"),
        [],
        {
            "title": f"Fact sheet of plan {escaped(plan.fingerprint[:16])}",
            "guarantee": escaped(plan.guarantee),
            "promise": listed(in_three_sentences(budget), "ol"),
            "facts": defined(plan_facts(plan)),
            "found": f"<p>{escaped(sentence_case(in_a_sentence(plan)))}</p>{unseen_table(plan)}",
            "not_covered": listed(not_covered(budget, plan)),
        },
    )
