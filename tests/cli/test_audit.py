"""``shh audit`` by its command line: what it prints and writes, its exit codes, what it does not try."""

import dataclasses
import functools
import json

import pytest

from dp_transforms.audit.contributions import audit_contributions
from dp_transforms.audit.hits import HitsClaim, Mechanism, ThresholdLaw, audit_hits
from dp_transforms.cli.audit import finish
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import plan_for
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.audited_names import audited_plan, mechanism_and_claim
from tests.helpers.shh_here import shh

HITS = {"charge": "hits", "hits_per_user": 2, "epsilon": 1.0, "delta": 1e-6, "max_users": 10_000}
HITS["schedule"] = WindowSchedule.fixed(0, 200 * 60, 60)


@functools.cache
def _hits_plan():
    return plan_for(**HITS)


def _audited(plan, folder, parts):
    """What the whole command says on stderr, and the record; parts: of what it says on stdout."""
    (folder / "plan.json").write_text(plan.to_json())
    words = ["audit", "--plan", "plan.json", "--output", "audit.json"]
    done = shh(*words, cwd=folder, COLUMNS="100")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for part in (plan.guarantee, plan.fingerprint[:16], *parts):
        assert part in text
    record = json.loads((folder / "audit.json").read_text())
    assert (record["verdict"], record["violations"]) == ("passed", [])
    assert record["plan"] == json.loads(plan.to_json())
    for limit in record["not_tried"]:
        assert f"- {limit}." in text
    return done.stderr, record


def test_a_plan_in_which_users_pay_for_hits(tmp_path):
    plan = _hits_plan()
    parts = (
        "charged results, user added",
        "items the user holds alone",
        f"{plan.threshold - 1:,} other holders, one fewer than the threshold",
        "one fewer than the upper edge of the zone",
        "until the user is excluded",
        "PASSED",
    )
    said, record = _audited(plan, tmp_path, parts)
    assert said.strip() == "", "no bar is left"
    exact = record["exact"]
    for direction in ("adding", "removing"):
        assert 0.9 < exact[direction]["attained"] / plan.shares.paid <= 1
    assert 0.9 < exact["lone_delta"] / plan.delta_open <= 1
    assert exact["together_delta"] <= plan.delta
    assert [figure["hits"] for figure in exact["running"]] == [1, 2]


def test_a_plan_in_which_users_pay_for_contributions(tmp_path):
    """Its delta is large, for a test."""
    plan = audited_plan()
    parts = (
        f"price of a test, worst of {len(plan.paid_contributions.weights)}",
        "delta of a full budget",
        f"items the user holds alone, {plan.paid_contributions.most_tests} tests",
        "both together",
        "PASSED",
    )
    said, record = _audited(plan, tmp_path, parts)
    assert [line.partition(" is large")[0] for line in said.splitlines()] == ["shh: warning: delta = 0.0001"]
    exact = record["exact"]
    price = exact["worst_price"]
    assert 0.9999 < price["test"][0] / price["claimed"] <= 1
    assert exact["prices"] == len(plan.paid_contributions.weights)
    assert exact["budget_delta"] == pytest.approx(plan.shares.paid)
    assert 0.9 < exact["lone_delta"] / plan.delta_open <= 1
    assert exact["together_delta"] <= plan.delta


# Violations: a plan cannot hold any, so they come from mechanisms that are not what was planned.


def _half_the_noise(plan):
    hits = plan.charged_hits
    return dataclasses.replace(Mechanism.of_plan(plan), law=ThresholdLaw(2 * hits.epsilon_per_query, hits.zone_width))


def _hits_of_half_the_noise():
    plan = _hits_plan()
    return plan, audit_hits(_half_the_noise(plan), HitsClaim.of_plan(plan))


def _tests_that_are_cheap():
    mechanism, claim = mechanism_and_claim(audited_plan())
    cheap = dataclasses.replace(mechanism, scale=150)
    return audited_plan(), audit_contributions(cheap, claim)


@pytest.mark.parametrize(
    ("audited", "said"),
    [(_hits_of_half_the_noise, "adding one user attains delta"), (_tests_that_are_cheap, "but its price is")],
)
def test_a_violation_ends_in_a_loud_sentence(audited, said, tmp_path, capsys):
    """`UserError` is exit code 1 (dp_transforms.cli.main)."""
    with pytest.raises(UserError, match=r"^DO NOT USE THIS PLAN\. ") as error:
        finish(*audited(), str(tmp_path / "audit.json"))
    printed, record = " ".join(capsys.readouterr().out.split()), json.loads((tmp_path / "audit.json").read_text())
    assert said in str(error.value)
    assert said in printed
    assert "VIOLATED" in printed
    assert "PASSED" not in printed
    assert record["verdict"] == "violated"
    assert record["violations"]
