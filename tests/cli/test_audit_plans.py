"""``shh audit`` of unusual plans: none raises a false alarm, faults in what workers get are refused, and what is listed
as not tried is true for the plan.

The keys of the audits are fresh: each one raises a false alarm with a probability of at most 1e-6.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dp_transforms.audit.exact_hits import audit_exactly
from dp_transforms.audit.exact_looks import audit_looks_exactly
from dp_transforms.audit.mechanism import HitsClaim, Mechanism
from dp_transforms.audit.trial_plan import TrialPlan
from dp_transforms.cli import audit
from dp_transforms.cli.audit import command
from dp_transforms.cli.audit_mode_reports import HitsReport, LooksReport
from dp_transforms.errors import UserError
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan, choices_of
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.audited_names import audited_plan, mechanism_and_claim

RUNS = 2_000
DOMAIN = ItemDomain.of_ids([f"item {n}" for n in range(40)])
HOURS = WindowSchedule.fixed(0, 24 * 3600, 3600)


def _sliding(windows: int, window: int, slide: int) -> WindowSchedule:
    return WindowSchedule(0, windows * slide, window, slide)


NAMES: list[dict[str, Any]] = [
    *({"most_looks": looks} for looks in (1, 50_000)),
    {"most_looks": 3_000, "domain": DOMAIN},
    {"counts_for": 3, "most_looks": 2},
    {"counts_for": 10, "domain": DOMAIN},
    {"counts_for": 4, "known_items": False, "schedule": _sliding(30, 3600, 600)},
    {"hits_per_user": 1, "most_looks": 5, "schedule": _sliding(1, 60, 60), "epsilon": 10.0, "delta": 1e-4},
    {"hits_per_user": 10, "most_looks": 3_000, "known_items": False},
    {"hits_per_user": 2, "most_looks": 50, "domain": DOMAIN, "schedule": _sliding(60, 3600, 900)},
    {"forget_after": 1, "known_error": 0.2, "most_looks": 2},
    {"schedule": _sliding(20_000, 60, 60)},
    {"epsilon": 0.01, "delta": 1e-6},
]
CHARGING: list[dict[str, Any]] = [
    {"mode": mode, **options}
    for mode in ("hits", "hits-with-counts", "kms21")
    for options in (
        {"hits_per_user": 2, "schedule": _sliding(1, 60, 60), "max_items_per_user": 3},
        {"hits_per_user": 1, "schedule": _sliding(50, 60, 10), "domain": DOMAIN},
        {"hits_per_user": 10, "epsilon": 5.0},
    )
]


def _plan(**options: Any) -> Plan:
    usual = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURS, "mode": "looks", "max_users": 100_000}
    plan = Plan.calibrate(**{**usual, **options})
    return plan


def _audit(plan: Plan, folder: pathlib.Path, *words: object) -> Result:
    path = folder / "plan.json"
    path.write_text(plan.to_json())
    return CliRunner().invoke(command, ["--plan", str(path), *map(str, words)])


@pytest.mark.parametrize("options", [*NAMES, *CHARGING])
def test_a_sound_plan_passes(options: dict[str, Any], tmp_path: pathlib.Path) -> None:
    result = _audit(_plan(**options), tmp_path, "--runs", RUNS)
    assert result.exit_code == 0, result.output
    assert "PASSED" in result.stdout


@pytest.mark.parametrize(("looks", "counts_for"), [(1, 0), (5, 2)])
def test_users_with_few_looks_pass_also_with_all_runs(looks: int, counts_for: int, tmp_path: pathlib.Path) -> None:
    result = _audit(_plan(most_looks=looks, counts_for=counts_for), tmp_path)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", ["threshold", "spacing"])
def test_faults_in_what_workers_get_are_refused(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(**of_run: Any) -> TrialPlan:
        run = PlannedRun(**of_run)
        lower = {"threshold": run.plan.threshold * 9 // 10}
        closer = {"looks": dataclasses.replace(run.plan.looks, spacing=run.plan.looks.spacing // 10)}
        return TrialPlan.of(run, **(lower if name == "threshold" else closer))

    monkeypatch.setattr(audit, "PlannedRun", faulty)
    for runs in (0, RUNS):
        result = _audit(audited_plan(), tmp_path, "--runs", runs)
        assert isinstance(result.exception, UserError)
        assert "workers get another plan than the one that is audited" in str(result.exception)


# ---------------------------------------------------------------------------------------------------------------------
# What was not tried
# ---------------------------------------------------------------------------------------------------------------------

# Of each option of a plan: what is printed as not tried if it is used; "" if all that it changes is tried.
LIMITS = {
    "usual_looks": "",
    "most_looks": "",
    "hits_per_user": "hits of a group in a stream",
    "known_items": "",
    "forget_after": "",
    "known_error": "",
    "size_error": "",
    "counts_for": "streams of counts and looks together",
    "activity_epsilon": "the histogram of activity",
    "rounds": "",  # refused
}
CHARGING_LIMITS = {
    "hits_per_user": "",
    "max_items_per_user": "bounding contributions",
    "threshold": "",
    "accountant": "",
}


def test_each_option_is_tried_or_in_the_list() -> None:
    """An option that is new must be put into one of these tables, and so be thought of."""
    assert set(LIMITS) == choices_of("looks")
    assert set(CHARGING_LIMITS) == choices_of("hits")


@pytest.mark.parametrize(
    ("option", "value"), [("hits_per_user", 2), ("counts_for", 3), ("activity_epsilon", 0.1), ("known_items", False)]
)
def test_the_list_names_what_an_option_leaves_untried(option: str, value: object) -> None:
    usual = _plan(most_looks=20)
    plan = _plan(most_looks=20, **{option: value})
    lists = [" ".join(_names_limits(each)) for each in (usual, plan)]
    for fragment in filter(None, LIMITS.values()):
        assert fragment not in lists[0]
        assert (fragment in lists[1]) == (fragment == LIMITS[option])


def _names_limits(plan: Plan, most_looks: int | None = 1) -> list[str]:
    assert plan.looks is not None
    return LooksReport(plan, audit_looks_exactly(*mechanism_and_claim(plan), most_looks=most_looks)).not_tried()


def test_the_list_says_how_many_looks_were_tried() -> None:
    plan = audited_plan()
    assert any(
        "more than 2 looks of a user" in text and "the 20 that are paid" in text for text in _names_limits(plan, 2)
    )
    assert not any("that are paid" in text for text in _names_limits(plan, None))
    assert any(text.startswith("adaptive streams of more than 3 looks") for text in _names_limits(plan, None))
    few = _names_limits(audited_plan(most_looks=3), None)
    assert not any("looks of a user" in text or text.startswith("adaptive") for text in few)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts", "kms21"])
@pytest.mark.parametrize("domain", [None, DOMAIN])
def test_the_list_of_modes_in_which_users_pay_for_hits(mode: str, domain: ItemDomain | None) -> None:
    plan = _plan(mode=mode, hits_per_user=2, domain=domain, epsilon=1.0, delta=1e-6)
    assert plan.looks is None
    report = HitsReport(plan, audit_exactly(Mechanism.of_plan(plan), HitsClaim.of_plan(plan)))
    limits = " ".join(report.not_tried())
    assert ("EmptyItems" in limits) == (domain is not None)
    assert ("for kms21 nothing here shows" in limits) == (mode == "kms21")
    for fragment in ("bounding contributions", "noise that does not follow the holders", "hand"):
        assert fragment in limits
