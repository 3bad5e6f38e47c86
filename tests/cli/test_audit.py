"""``shh audit`` by its command line: what it prints and writes, its exit codes, what it does not try."""

import dataclasses
import functools
import json

import pytest

from dp_transforms.audit.hits import HitsClaim, Mechanism, ThresholdLaw, audit_hits
from dp_transforms.cli.audit import finish
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import plan_for
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.calibrated_plans import short_contributions_plan
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
    assert {*record["exact"]} >= {"adding", "removing", "lone_delta", "together_delta", "running"}


def test_a_plan_in_which_users_pay_for_contributions(tmp_path):
    _audited(short_contributions_plan(), tmp_path, ("PASSED",))


def test_a_violation_ends_in_a_loud_sentence(tmp_path, capsys):
    """`UserError` is exit code 1 (dp_transforms.cli.main)."""
    plan = _hits_plan()
    law = ThresholdLaw(2 * plan.charged_hits.epsilon_per_query, plan.charged_hits.zone_width)
    audit = audit_hits(dataclasses.replace(Mechanism.of_plan(plan), law=law), HitsClaim.of_plan(plan))
    with pytest.raises(UserError, match=r"^DO NOT USE THIS PLAN\. .*adding one user attains delta"):
        finish(plan, audit, str(tmp_path / "audit.json"))
    printed, record = " ".join(capsys.readouterr().out.split()), json.loads((tmp_path / "audit.json").read_text())
    assert "adding one user attains delta" in printed
    assert "VIOLATED" in printed
    assert "PASSED" not in printed
    assert record["verdict"] == "violated"
    assert record["violations"]
