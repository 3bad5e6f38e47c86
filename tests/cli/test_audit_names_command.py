"""``shh audit`` of a plan of mode `looks` by its command line: what it prints and writes, its exit codes."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest
from click.testing import CliRunner, Result

from dp_transforms.audit.exact_looks import audit_looks_exactly
from dp_transforms.audit.payments import PaymentAudit
from dp_transforms.audit.statistics import FALSE_ALARM
from dp_transforms.cli.audit import command, finish, sample_looks
from dp_transforms.cli.audit_mode_reports import LooksReport
from dp_transforms.errors import UserError
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.plan.plan import Plan
from tests.helpers.audited_names import audited_plan, mechanism_and_claim, run_settings
from tests.helpers.shh_process import shh
from tests.helpers.trials import changed

RUNS = 2_000


@pytest.fixture
def plan_file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "plan.json"
    path.write_text(audited_plan().to_json())
    return path


def _run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def test_the_command_itself(plan_file: pathlib.Path) -> None:
    """In a process of its own: exit code 0, a report on stdout, no bar on stderr; all numbers as JSON. Its delta is
    large, for a test."""
    words = ["audit", "--plan", "plan.json", "--runs", RUNS, "--output", "audit.json"]
    done = shh(*words, cwd=plan_file.parent, COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert [line.partition(" is large")[0] for line in done.stderr.split("\n") if line] == [
        "shh: warning: delta = 0.0001"
    ]
    text = " ".join(done.stdout.split())
    plan = audited_plan()
    for part in (
        plan.guarantee,
        plan.fingerprint[:16],
        f"price of a look, worst of {len(plan.paid_looks.weights)}",
        "delta of a full purse",
        "3 adaptive looks",
        f"items the user holds alone, {plan.paid_looks.most_looks} looks",
        "both together",
        "most that a user spends in a stream 1.0000 of a purse",
        "weights that change with the events of others 0",
        f"{RUNS:,} runs of the real code in each world",
        "with 99.9 % confidence, of 2",
        "Not tried:",
        "PASSED",
    ):
        assert part in text
    record = json.loads((plan_file.parent / "audit.json").read_text())
    assert (record["verdict"], record["violations"]) == ("passed", [])
    assert record["plan"]["fingerprint"] == plan.fingerprint
    assert record["plan"]["shares"]["paid"] == plan.shares.paid
    exact = record["exact"]
    price = exact["worst_price"]
    assert 0.9999 < price["attained_divergence"] / price["claimed_divergence"] <= 1
    assert exact["prices_compared"] == len(plan.paid_looks.weights)
    assert exact["full_purse"]["delta_at_claimed_epsilon"] == pytest.approx(plan.shares.paid)
    assert [each["looks"] for each in exact["adaptive_looks"]] == [1, 2, 3]
    assert [each["looks"] for each in exact["equal_looks"]] == [1, 3, 10, 20]
    for each in (*exact["adaptive_looks"], *exact["equal_looks"]):
        assert 0 < each["delta_at_claimed_epsilon"] <= plan.shares.paid
    assert 0.9 < exact["lone_items"]["delta"] / plan.delta_open <= 1
    assert exact["together"]["delta_at_claimed_epsilon"] <= plan.delta
    assert 0.99 < record["payments"]["replay_share"] <= 1
    sampled = record["sampled"]
    assert sampled["runs_in_each_world"] == RUNS
    assert 0 <= sampled["epsilon_lower_bound"] <= 2
    assert sampled["fit"]["p_value"] >= sampled["fit"]["false_alarm"] == FALSE_ALARM
    assert record["not_tried"]


def test_a_known_domain_and_no_runs(tmp_path: pathlib.Path) -> None:
    path, output = tmp_path / "plan.json", tmp_path / "audit.json"
    path.write_text(audited_plan(domain=("a", "b")).to_json())
    result = _run("--plan", path, "--runs", 0, "--rounds", 1, "--output", output)
    assert result.exit_code == 0, result.output
    assert "The real code was not run" in result.stdout
    record = json.loads(output.read_text())
    assert record["sampled"] is record["payments"] is None
    assert record["exact"]["lone_items"]["delta"] == 0
    assert [each["looks"] for each in record["exact"]["adaptive_looks"]] == [1], "--rounds"


@pytest.mark.parametrize("change", [{"threshold": 5}, {"spacing": 100}, {"order": 9.0}, {"most_looks": 21}])
def test_a_plan_that_was_tampered_with_is_refused(plan_file: pathlib.Path, change: dict[str, object]) -> None:
    plan_file.write_text(json.dumps({**json.loads(plan_file.read_text()), **change}))
    result = _run("--plan", plan_file, "--runs", 0)
    assert isinstance(result.exception, UserError)
    assert "--plan" in str(result.exception)


# ---------------------------------------------------------------------------------------------------------------------
# Violations: a plan cannot hold any, so they come from mechanisms that are not what was planned
# ---------------------------------------------------------------------------------------------------------------------


def _record_of_violation(
    plan: Plan, capsys: pytest.CaptureFixture[str], output: pathlib.Path, fragment: str, **parts: object
) -> dict:
    exact = parts.get("exact") or audit_looks_exactly(*mechanism_and_claim(plan), most_looks=1)
    with pytest.raises(UserError) as error:
        finish(LooksReport(plan, exact, parts.get("payments"), parts.get("sampled")), str(output))  # type: ignore[arg-type]
    printed, record = " ".join(capsys.readouterr().out.split()), json.loads(output.read_text())
    assert str(error.value).startswith("DO NOT USE THIS PLAN.")
    assert fragment in str(error.value)
    assert fragment in printed
    assert "VIOLATED" in printed
    assert "PASSED" not in printed
    assert record["verdict"] == "violated"
    return record


def test_prices_that_are_too_low_end_in_a_loud_sentence(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`UserError` is exit code 1 (dp_transforms.cli.main)."""
    mechanism, claim = mechanism_and_claim(audited_plan())
    cheap = dataclasses.replace(mechanism, scale=150)
    exact = audit_looks_exactly(cheap, claim, most_looks=1)
    record = _record_of_violation(audited_plan(), capsys, tmp_path / "audit.json", "but its price is", exact=exact)
    assert record["exact"]["worst_price"]["attained_divergence"] > record["exact"]["worst_price"]["claimed_divergence"]


def test_an_overdrawn_purse_ends_in_a_loud_sentence(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    payments = PaymentAudit(3, 70, 1.5, 1.0, ("in a replay, a user pays 1.5 times what is in its purse",))
    _record_of_violation(audited_plan(), capsys, tmp_path / "a.json", "a user pays 1.5 times", payments=payments)


def test_code_that_does_not_follow_the_theory_ends_in_a_loud_sentence(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real code runs with half the noise of the plan."""
    plan = audited_plan()
    settings = changed(run_settings(plan), noise=ExponentialPower(2.5, 100))
    sampled = sample_looks(*mechanism_and_claim(plan), settings, RUNS, 1, lambda text, share: None)
    record = _record_of_violation(
        plan, capsys, tmp_path / "audit.json", "does not publish what its exact law says", sampled=sampled
    )
    assert record["sampled"]["fit"]["p_value"] < FALSE_ALARM
