"""``shh audit`` by its command line: what it prints and writes, its exit codes, what it does not try."""

import dataclasses
import functools
import json

import pytest
from click.testing import CliRunner

from dp_transforms.audit.exact_hits import audit_exactly
from dp_transforms.audit.exact_looks import audit_looks_exactly
from dp_transforms.audit.look_law import ThresholdLaw
from dp_transforms.audit.mechanism import HitsClaim, Mechanism
from dp_transforms.cli import audit
from dp_transforms.cli.audit import command, finish, report_of
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import choices_of, plan_for
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.audited_names import audited_plan, mechanism_and_claim
from tests.helpers.shh_here import shh
from tests.helpers.trial_plan import TrialPlan

HOURS = WindowSchedule.fixed(0, 24 * 3600, 3600)

HITS = {"charge": "hits", "hits_per_user": 2, "epsilon": 1.0, "delta": 1e-6, "max_users": 10_000}
HITS["schedule"] = WindowSchedule.fixed(0, 200 * 60, 60)


@functools.cache
def _hits_plan():
    return _plan(**HITS)


def _plan(**options):
    usual = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURS, "max_users": 100_000}
    return plan_for(**{**usual, **options})


def _audit(plan, folder, *words):
    (folder / "plan.json").write_text(plan.to_json())
    return CliRunner().invoke(command, ["--plan", str(folder / "plan.json"), *map(str, words)])


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
    assert sorted(path.name for path in folder.iterdir()) == ["audit.json", "plan.json"]
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
        "one fewer than the upper edge of the zone instead",
        "until the user is excluded",
        "PASSED",
    )
    said, record = _audited(plan, tmp_path, parts)
    assert said.strip() == "", "no bar is left"
    exact = record["exact"]
    for direction in ("adding", "removing"):
        side = exact[direction]
        assert 0.9 < side["delta"] / plan.shares.paid <= 1
        assert 0.95 < side["epsilon"] <= 1
        assert side["best_delta"] == pytest.approx(side["delta"], rel=1e-4)
        assert side["static_delta"] < side["delta"]
        assert side["stream"]["adds_user"] is (direction == "adding")
        assert len(side["curve"]) > 10
    assert 0.9 < exact["lone_delta"] / plan.delta_open <= 1
    assert exact["together_epsilon"] <= 1
    assert [figure["hits"] for figure in exact["running"]] == [1, 2]


def test_a_plan_in_which_users_pay_for_looks(tmp_path):
    """Its delta is large, for a test."""
    plan = audited_plan()
    parts = (
        f"price of a test, worst of {len(plan.paid_contributions.weights)}",
        "delta of a full budget",
        "3 adaptive tests",
        f"items the user holds alone, {plan.paid_contributions.most_tests} tests",
        "both together",
        "PASSED",
    )
    said, record = _audited(plan, tmp_path, parts)
    assert [line.partition(" is large")[0] for line in said.splitlines()] == ["shh: warning: delta = 0.0001"]
    exact = record["exact"]
    price = exact["worst_price"]
    assert 0.9999 < price["look"][0] / price["claimed"] <= 1
    assert exact["prices"] == len(plan.paid_contributions.weights)
    assert exact["purse_delta"] == pytest.approx(plan.shares.paid)
    assert [each["looks"] for each in exact["few"]] == [1, 2, 3]
    assert [each["looks"] for each in exact["static"]] == [1, 3, 10, 20]
    for each in (*exact["few"], *exact["static"]):
        assert 0 < each["delta"] <= plan.shares.paid
    assert 0.9 < exact["lone_delta"] / plan.delta_open <= 1
    assert exact["together_delta"] <= plan.delta


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps({**json.loads(_hits_plan().to_json()), "threshold": 5}), "shh plan --output"),
        (json.dumps({**json.loads(audited_plan().to_json()), "threshold": 5}), "shh plan --output"),
        ("[]", "shh plan --output"),
        (None, "cannot be read"),
    ],
    ids=["hits", "looks", "no plan", "missing"],
)
def test_what_is_not_a_sound_plan_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    done = shh("audit", "--plan", "plan.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("shh: --plan plan.json")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


# Violations: a plan cannot hold any, so they come from mechanisms that are not what was planned.


def _half_the_noise(plan):
    hits = plan.charged_hits
    return dataclasses.replace(Mechanism.of_plan(plan), law=ThresholdLaw(2 * hits.epsilon_per_query, hits.zone_width))


def _hits_of_half_the_noise():
    plan = _hits_plan()
    return report_of(plan, audit_exactly(_half_the_noise(plan), HitsClaim.of_plan(plan)))


def _looks_that_are_cheap():
    mechanism, claim = mechanism_and_claim(audited_plan())
    cheap = dataclasses.replace(mechanism, scale=150)
    return report_of(audited_plan(), audit_looks_exactly(cheap, claim, most_tests=1))


def _exact_looks(plan, most_tests=1):
    return audit_looks_exactly(*mechanism_and_claim(plan), most_tests=most_tests)


@pytest.mark.parametrize(
    ("report_of", "said"),
    [(_hits_of_half_the_noise, "adding one user attains delta"), (_looks_that_are_cheap, "but its price is")],
)
def test_a_violation_ends_in_a_loud_sentence(report_of, said, tmp_path, capsys):
    """`UserError` is exit code 1 (dp_transforms.cli.main)."""
    with pytest.raises(UserError, match=r"^DO NOT USE THIS PLAN\. ") as error:
        finish(report_of(), str(tmp_path / "audit.json"))
    printed, record = " ".join(capsys.readouterr().out.split()), json.loads((tmp_path / "audit.json").read_text())
    assert said in str(error.value)
    assert said in printed
    assert "VIOLATED" in printed
    assert "PASSED" not in printed
    assert record["verdict"] == "violated"
    assert record["violations"]


@pytest.mark.parametrize("name", ["threshold", "spacing"])
def test_faults_in_what_workers_get_are_refused(name, tmp_path, monkeypatch):
    def faulty(**of_run):
        run = PlannedRun(**of_run)
        lower = {"threshold": run.plan.threshold * 9 // 10}
        closer = {
            "contributions": dataclasses.replace(run.plan.contributions, spacing=run.plan.contributions.spacing // 10)
        }
        return TrialPlan.of(run, **(lower if name == "threshold" else closer))

    monkeypatch.setattr(audit, "PlannedRun", faulty)
    result = _audit(audited_plan(), tmp_path)
    assert isinstance(result.exception, UserError)
    assert "workers get another plan than the one that is audited" in str(result.exception)


# What was not tried.


# Of each option of a plan: what is printed as not tried if it is used; "" if all that it changes is tried.
IN_ROUNDS = "other counts and weights in rounds"
LIMITS = dict.fromkeys(
    ("usual_contributions", "most_contributions", "forget_after", "false_name_error", "size_error"), ""
)
LIMITS |= {"use": IN_ROUNDS}


def test_each_option_is_tried_or_in_the_list():
    """An option that is new must be put into one of these tables, and so be thought of."""
    of_contributions, of_hits = choices_of("contributions"), choices_of("hits")
    assert set(LIMITS) == of_contributions - of_hits
    own = {"counts", "noise", "hits_per_user", "max_items_per_user", "most_keys", "threshold"}
    assert own == of_hits - of_contributions


@pytest.mark.parametrize(("option", "value"), [("forget_after", 0), ("use", "replay")])
def test_the_list_names_what_an_option_leaves_untried(option, value):
    lists = [
        " ".join(_looks_limits(_plan(most_contributions=20, **more))) for more in ({"use": "stream"}, {option: value})
    ]
    for fragment in filter(None, LIMITS.values()):
        assert fragment not in lists[0]
        assert (fragment in lists[1]) == (fragment == LIMITS[option])


def _looks_limits(plan, most_tests=1):
    return report_of(plan, _exact_looks(plan, most_tests)).not_tried
