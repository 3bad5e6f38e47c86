"""``shh audit`` by its command line: what it prints and writes, its exit codes, and files that are not plans."""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from dp_transforms.audit.exact_hits import ExactAudit, audit_exactly
from dp_transforms.audit.mechanism import HitsClaim, Mechanism
from dp_transforms.audit.query_law import ThresholdLaw
from dp_transforms.audit.statistics import FALSE_ALARM, SampledAudit
from dp_transforms.cli.audit import command, finish, sample_hits
from dp_transforms.cli.audit_mode_reports import HitsReport
from dp_transforms.errors import UserError
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.planned_run import fresh_run_id
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers import shh_here
from tests.helpers.shh_process import shh
from tests.helpers.trials import trial_of

RUNS = 2_000


def _plan(**options: object) -> Plan:
    return Plan.calibrate(
        **{
            "epsilon": 1.0,
            "delta": 1e-6,
            "schedule": WindowSchedule.fixed(0, 200 * 60, 60),
            "mode": "hits",
            "hits_per_user": 2,
            "max_users": 10_000,
            **options,
        }
    )


@pytest.fixture
def plan_file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "plan.json"
    path.write_text(_plan().to_json())
    return path


def _run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def test_the_command_itself(plan_file: pathlib.Path) -> None:
    """In a process of its own: exit code 0, a report on stdout, nothing left on stderr; all numbers as JSON."""
    words = ["audit", "--plan", "plan.json", "--runs", RUNS, "--output", "audit.json"]
    done = shh(*words, cwd=plan_file.parent, COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    text = " ".join(done.stdout.split())
    plan = Plan.from_json(plan_file.read_text())
    for part in (
        plan.guarantee,
        plan.fingerprint[:16],
        "charged results, user added",
        "items the user holds alone",
        f"{plan.threshold - 1:,} other holders, one fewer than the threshold",
        "one fewer than the upper edge of the zone instead",
        "until the user is excluded",
        f"{RUNS:,} runs of the real code in each world",
        "with 99.9 % confidence",
        "Not tried:",
        "PASSED",
    ):
        assert part in text
    assert sorted(path.name for path in plan_file.parent.iterdir()) == ["audit.json", "plan.json"]
    record = json.loads((plan_file.parent / "audit.json").read_text())
    assert (record["verdict"], record["violations"]) == ("passed", [])
    assert record["plan"]["fingerprint"] == plan.fingerprint
    assert record["plan"] == json.loads(plan_file.read_text())
    for direction in ("adding", "removing"):
        side = record["exact"][direction]
        assert 0.9 < side["delta_at_claimed_epsilon"] / plan.shares.paid <= 1
        assert 0.95 < side["epsilon_at_delta_accounting"] <= 1
        assert side["best_adaptive_delta"] == pytest.approx(side["delta_at_claimed_epsilon"], rel=1e-4)
        assert side["best_static"]["delta_at_claimed_epsilon"] < side["delta_at_claimed_epsilon"]
        assert side["stream"]["adds_user"] is (direction == "adding")
        assert len(side["curve"]) > 10
    assert 0.9 < record["exact"]["lone_items"]["delta"] / plan.delta_open <= 1
    assert record["exact"]["together"]["epsilon_at_claimed_delta"] <= 1
    assert [figure["hits"] for figure in record["exact"]["running_figure"]] == [1, 2]
    sampled = record["sampled"]
    assert sampled["runs_in_each_world"] == RUNS
    assert 0 <= sampled["epsilon_lower_bound"] <= 1
    assert sampled["confidence"] == 0.999
    assert sampled["fit"]["p_value"] >= sampled["fit"]["false_alarm"] == FALSE_ALARM
    assert record["not_tried"]


def test_no_runs_and_few_rounds(plan_file: pathlib.Path) -> None:
    output = plan_file.parent / "audit.json"
    result = _run("--plan", plan_file, "--runs", 0, "--rounds", 30, "--output", output)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "The real code was not run" in text
    assert "So few items do not exclude the user" in text
    record = json.loads(output.read_text())
    assert record["sampled"] is None
    assert record["exact"]["adding"]["stream"]["rounds"] == 30


@pytest.mark.parametrize("mode", ["hits-with-counts", "kms21"])
def test_other_release_modes(tmp_path: pathlib.Path, mode: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(_plan(mode=mode).to_json())
    result = _run("--plan", path, "--runs", 200)
    assert result.exit_code == 0, result.output
    assert "PASSED" in result.stdout
    assert mode in result.stdout


def test_a_known_domain(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(_plan(domain=ItemDomain.of_ids([f"item {n}" for n in range(50)])).to_json())
    result = _run("--plan", path, "--runs", 200, "--output", tmp_path / "audit.json")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "audit.json").read_text())
    assert record["exact"]["lone_items"]["delta"] == 0
    # Every item of a sampled run has holders, so this is a part of the mechanism that no audit runs.
    (limit,) = [text for text in record["not_tried"] if "EmptyItems" in text]
    assert " ".join(limit.split()) in " ".join(result.stdout.split())


def _limits(plan: Plan, rounds: int | None = None) -> tuple[str, str, dict]:
    """What a report prints about the streams that were not tried; all that it prints; and its record."""
    exact = audit_exactly(Mechanism.of_plan(plan), HitsClaim.of_plan(plan), rounds=rounds)
    console = Console(width=100, record=True, file=io.StringIO(), highlight=False, markup=False)
    report = HitsReport(plan, exact)
    report.print(console)
    record = report.record()
    text = " ".join(console.export_text().split())
    for limit in record["not_tried"]:
        assert f"- {limit}." in text
    return record["not_tried"][0], text, record


def test_only_what_was_computed_is_said_of_streams_that_were_not_tried() -> None:
    limit, text, record = _limits(_plan())
    assert "by the theorem in docs/audit.md none on" in limit
    assert "No adversary at all attains more on" in text
    assert record["exact"]["adding"]["no_adversary_exceeds"]["delta_at_claimed_epsilon"] > 0
    assert "EmptyItems" not in text
    limit, text, record = _limits(_plan(mode="kms21"))
    assert "theorem" not in limit
    assert "a few fixed numbers of holders" in limit
    assert "No adversary" not in text
    assert "more" not in limit
    assert record["exact"]["adding"]["no_adversary_exceeds"] is None
    limit, text, _ = _limits(_plan(), rounds=20)
    assert limit.startswith("streams that show the user on more than 20 items; ")
    assert "So few items do not exclude the user" in text


@pytest.mark.parametrize("domain", [None, ItemDomain.of_ids([f"item {n}" for n in range(50)])])
def test_a_run_of_few_windows_with_several_items_in_each(domain: ItemDomain | None) -> None:
    """One item a window attains nothing at all in 24 windows, and that is not called the most."""
    schedule = WindowSchedule.fixed(0, 24 * 3600, 3600)
    plan = Plan.calibrate(epsilon=2.0, delta=1e-9, schedule=schedule, mode="hits", max_items_per_user=3, domain=domain)
    limit, text, record = _limits(plan)
    assert "no more" not in text
    assert "No adversary at all" not in text
    assert "whether one attains more than the" in limit
    assert limit.endswith("is open")
    assert "in each window, until the user is excluded" in text
    for direction in ("adding", "removing"):
        side = record["exact"][direction]
        static, best = side["best_static"]["delta_at_claimed_epsilon"], side["best_adaptive_delta"]
        ceiling = side["no_adversary_exceeds"]
        assert 0 < static < side["delta_at_claimed_epsilon"] < best < ceiling["delta_at_claimed_epsilon"]
        assert ceiling["items"] == 72
        assert f"{best:.4g}" in text
        assert f"{ceiling['delta_at_claimed_epsilon']:.4g} on 72 items" in text
    assert all(figure["delta"] > 0.99 * plan.shares.paid for figure in record["exact"]["running_figure"])


def test_a_plan_is_missing(tmp_path: pathlib.Path) -> None:
    done = shh_here.shh("audit", cwd=tmp_path)
    assert done.returncode == 2
    assert "Missing --plan" in done.stderr
    assert "shh plan --output" in done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Hostile plans
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"hits": {"epsilon_per_query": 2.0}},
        {"threshold": 5},
        {"epsilon": 0.5},
        {"shares": {"paid": 1e-9}},
        {"epsilon": None},
        {"mode": "histogram"},
        {"surprise": 1},
    ],
)
def test_a_plan_that_was_tampered_with_is_refused(plan_file: pathlib.Path, changes: dict[str, object]) -> None:
    plan_file.write_text(json.dumps({**json.loads(plan_file.read_text()), **changes}))
    result = _run("--plan", plan_file, "--runs", 0)
    assert isinstance(result.exception, UserError)
    assert "--plan" in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe\x00", b"[" * 100_000, b'{"format_version": 99}'])
def test_files_that_are_not_plans(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    result = _run("--plan", path)
    assert isinstance(result.exception, UserError)
    assert "shh plan --output" in str(result.exception)
    for missing in (tmp_path / "none.json", tmp_path):
        assert "cannot be read" in str(_run("--plan", missing).exception)


# ---------------------------------------------------------------------------------------------------------------------
# Violations: a plan cannot hold any, so they come from mechanisms that are not what was planned
# ---------------------------------------------------------------------------------------------------------------------


def _finish(
    plan: Plan,
    exact: ExactAudit,
    sampled: SampledAudit | None,
    output: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> tuple[str, str, dict]:
    with pytest.raises(UserError) as error:
        finish(HitsReport(plan, exact, sampled), str(output))
    return " ".join(capsys.readouterr().out.split()), str(error.value), json.loads(output.read_text())


def test_half_the_noise_ends_in_a_loud_sentence(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`UserError` is exit code 1 (dp_transforms.cli.main)."""
    plan = _plan()
    mechanism = dataclasses.replace(
        Mechanism.of_plan(plan), law=ThresholdLaw(2 * plan.charged_hits.epsilon_per_query, plan.charged_hits.zone_width)
    )
    exact = audit_exactly(mechanism, HitsClaim.of_plan(plan))
    printed, error, record = _finish(plan, exact, None, tmp_path / "audit.json", capsys)
    assert error.startswith("DO NOT USE THIS PLAN.")
    assert "VIOLATED: adding one user attains delta" in printed
    assert "PASSED" not in printed
    assert record["verdict"] == "violated"
    assert len(record["violations"]) >= 3


def test_code_that_does_not_follow_the_theory_ends_in_a_loud_sentence(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real code runs on a plan of its own; the law is that of half its noise."""
    plan = _plan()
    claim = HitsClaim.of_plan(plan)
    wrong = dataclasses.replace(
        Mechanism.of_plan(plan), law=ThresholdLaw(2 * plan.charged_hits.epsilon_per_query, plan.charged_hits.zone_width)
    )
    settings = trial_of(plan, stream="audit", run_id=fresh_run_id())
    sampled = sample_hits(wrong, claim, settings, RUNS, 60, lambda text, share: None)
    exact = audit_exactly(Mechanism.of_plan(plan), claim)
    printed, error, record = _finish(plan, exact, sampled, tmp_path / "audit.json", capsys)
    assert "does not publish what its exact law says" in error
    assert "VIOLATED" in printed
    assert record["verdict"] == "violated"
    assert record["sampled"]["fit"]["p_value"] < FALSE_ALARM
