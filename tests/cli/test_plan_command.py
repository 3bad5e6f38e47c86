"""``shh plan`` by its command line."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re

import pytest
from click.testing import CliRunner, Result

from dp_transforms.cli import plan as plan_module
from dp_transforms.cli.plan import command
from dp_transforms.cli.plan_options import PlanOptions, plan_from_options
from dp_transforms.errors import UserError
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.plan_comparison import Comparison
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.forked import shh

HOURLY = ["--window", "1h", "--start", "2017-10-01T03:00:00Z", "--end", "2017-10-17T03:00:00Z"]
BUDGET = ["--epsilon", "2", "--delta", "1e-9"]
LABELS = ["--mode", "hits"]
NAMES = ["--mode", "looks"]
REFERENCES = json.loads((pathlib.Path(__file__).parents[1] / "data" / "reference_values.json").read_text())


def _run(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def test_accountants_as_in_the_reference() -> None:
    row = next(row for row in REFERENCES if (row["eps_query"], row["hits"], row["delta"]) == (0.1, 5, 1e-8))
    words = ["--epsilon-per-query", "0.1", "--hits-per-user", "5", "--delta", "1e-8", "--json"]
    counts = json.loads(_run("--mode", "hits-with-counts", *words).stdout)
    for name in ("game", "exact_tail", "closed_form"):
        assert counts["epsilon"][name] == pytest.approx(row[name], rel=3e-5)
    labels = json.loads(_run("--mode", "hits", *words).stdout)
    assert labels["epsilon"]["game"] == pytest.approx(row["game_between_zone_2_over_eps"], rel=3e-5)
    assert labels["zone_width"] == 20
    assert labels["target_probability"] == pytest.approx((1 - math.exp(-2)) / (math.exp(0.1) + 1))


def test_a_plan_of_names_says_why_it_has_no_price_for_hits() -> None:
    result = _run(*BUDGET, *HOURLY, *NAMES, "--usual-looks", "1", "200", "--most-looks", "300", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert "hits" not in record["chosen"]
    alone, with_hits = (record["found_from"][method]["100"] for method in ("looks", "looks_and_hits"))
    assert with_hits < alone
    assert record["why"].startswith("Looks alone are paid for: most users have 1 to 200 items.")
    assert f"from {with_hits:,} users on instead of {alone:,}" in record["why"]
    assert "until each has had 10 hits; a user with 100 items may have some 10." in record["why"]
    few = _run(*BUDGET, *HOURLY, *NAMES, "--usual-looks", "1", "1", "--most-looks", "20")
    assert "most users have 1 item in the run. A price for hits would find no more." in few.stdout


def test_the_sentence_does_not_wait_for_the_other_methods(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []

    class Spy(Comparison):
        def __init__(self, plan: Plan) -> None:
            said.append(capsys.readouterr().out)
            super().__init__(plan)

    monkeypatch.setattr(plan_module, "Comparison", Spy)
    command.main([*BUDGET, *HOURLY], standalone_mode=False)
    assert [line.startswith("An hour's item") for line in said] == [True]
    rest = capsys.readouterr().out
    assert "weighted" in rest
    assert "An hour's item" not in rest


def test_a_terminal_gets_no_word_cut_in_two_and_a_program_gets_whole_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = {}
    for terminal in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", terminal)
        command.main([*BUDGET, *HOURLY], standalone_mode=False)
        said[terminal] = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, said["1"].splitlines())) <= 80
    assert max(map(len, said[""].splitlines())) > 80
    assert "".join(said["1"].split()) == "".join(said[""].split())
    words = set(said[""].split())
    assert not [word for word in said["1"].split() if word not in words]


def test_a_plan_with_hits_says_what_they_gain_and_cost(tmp_path: pathlib.Path) -> None:
    words = [*BUDGET, *HOURLY, *NAMES, "--usual-looks", "10", "200", "--most-looks", "300", "--hits-per-user", "2"]
    result = _run(*words, "--output", str(tmp_path / "a.json"), "--chart", str(tmp_path / "a.svg"))
    assert result.exit_code == 0, result.output
    printed = " ".join(result.stdout.split())
    assert "Looks and hits are paid for: most users have 10 to 200 items." in printed
    assert "until they have had 2 hits; then they no longer count." in printed
    assert "looks and 2 hits, " in printed
    assert "in two steps of" in printed
    assert "looks alone" in (tmp_path / "a.svg").read_text()
    plan = Plan.from_json((tmp_path / "a.json").read_text())
    assert plan.looks is not None
    assert plan.hits_per_user == 2
    record = json.loads(_run(*words, "--json").stdout)
    assert record["chosen"] == json.loads(plan.to_json())
    found = record["found_from"]
    assert found["looks"]["100"] == plan.found_from(100) < found["looks_alone"]["100"]
    beside = _run("--compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert any("hits per user" in line and "2" in line for line in beside.stdout.splitlines())


def test_accountants_as_a_table() -> None:
    result = _run("--epsilon-per-query", "0.1", "--delta", "1e-8", "--mode", "hits-with-counts", "--hits-per-user", "5")
    assert result.exit_code == 0
    assert "3.4498" in result.stdout
    assert "exact_tail" in result.stdout


def test_the_command_itself(tmp_path: pathlib.Path) -> None:
    done = shh("plan", *BUDGET, *HOURLY, "--mode", "hits-with-counts", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "620" in done.stdout
    assert "hits │" not in done.stdout


def test_machine_output_and_plan_file(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "plan.json"
    result = _run(
        *BUDGET,
        *HOURLY,
        *LABELS,
        "--hits-per-user",
        "7",
        "--max-items-per-user",
        "2",
        "--json",
        "--output",
        str(output),
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    plan = Plan.from_json(output.read_text())
    assert Plan.from_json(json.dumps(record["chosen"])) == plan
    assert record["fingerprint"] == plan.fingerprint
    chosen = [row for row in record["plans"] if row["chosen"]]
    assert len(chosen) == 1
    assert (chosen[0]["hits_per_user"], chosen[0]["max_items_per_user"]) == (7, 2)
    assert chosen[0]["smallest_detectable"] == plan.smallest_detectable(0.95)
    assert {row["mode"] for row in record["plans"]} == {"hits"}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "489"], "--threshold must be >= 490"),
        (["--hits-per-user", "0"], "--hits-per-user must be a whole number >= 1, got 0."),
        (["--max-items-per-user", "-2"], "--max-items-per-user must be a whole number >= 1, got -2."),
        (["--epsilon", "nan"], "--epsilon must be > 0"),
        (["--epsilon", "-1"], "--epsilon must be > 0"),
        (["--delta", "1"], "--delta must lie strictly between 0 and 1"),
        (["--delta", "1e-13"], "--delta must be > 5.42e-12"),
        (["--slide", "7m"], "--slide must divide --window"),
        (["--end", "2017-09-01"], "the end of the range must lie after its start"),
        (["--max-users", "0"], "--max-users must be"),
        (["--epsilon", "0.0001"], "Raise epsilon or delta, or lower --hits-per-user"),
        (
            ["--mode", "looks", "--usual-looks", "0", "5"],
            "each of --usual-looks must be a whole number in 1 .. 3000",
        ),
        (["--mode", "looks", "--hits-per-user", "-1"], "--hits-per-user must be a whole number in 0 .. 3000, got -1"),
        (["--mode", "looks", "--hits-per-user", "3001"], "--hits-per-user must be a whole number in 0 .. 3000, got"),
        (["--mode", "looks", "--most-looks", "0"], "--most-looks must be a whole number in 1 .. 100000, got 0."),
        (
            ["--mode", "looks", "--forget-after", "400"],
            "--forget-after must be a whole number in 1 .. 384, got 400.",
        ),
        (
            ["--mode", "looks", "--forget-after", "4", "--no-known-items"],
            "--forget-after cannot be used with --no-known-items. Leave one out.",
        ),
        (["--mode", "looks", "--delta", "1e-13"], "--delta must be > 5.42e-12"),
        (["--mode", "looks", "--epsilon", "1e-9"], "too small"),
    ],
)
def test_errors_name_the_flag(words: list[str], message: str) -> None:
    result = _run(*BUDGET, *HOURLY, *LABELS, *words)
    assert isinstance(result.exception, UserError), result.output
    assert message in str(result.exception)
    assert "_" not in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*BUDGET, *HOURLY, "--output", "a.json", "--chart", "a.json"], "--output and --chart name the same file."),
        (["--compare", "a.json"], "Option '--compare' requires 2 arguments."),
        (
            ["--epsilon-per-query", "0.1", "--delta", "1e-8", "--mode", "looks"],
            "--epsilon-per-query cannot be used with --mode looks, where users pay for looks.",
        ),
        ([*BUDGET], "Missing --window, --start, --end."),
        ([*HOURLY, "--epsilon", "2"], "Missing --delta."),
        ([*BUDGET, *HOURLY, "--mode", "histogram"], "'histogram' is not one of"),
        (
            ["--epsilon-per-query", "0.1", "--delta", "1e-8", "--mode", "kms21"],
            "--epsilon-per-query cannot be used with --mode kms21, whose noise has three numbers.",
        ),
        ([*BUDGET, *HOURLY, "--window", "1 hour"], "is not a duration"),
    ],
)
def test_wrong_command_lines(words: list[str], message: str) -> None:
    result = _run(*words)
    assert result.exit_code == 2
    assert message in result.output


def test_epsilon_per_query_out_of_range() -> None:
    for value in ("nan", "0", "100"):
        result = _run("--epsilon-per-query", value, "--delta", "1e-8")
        assert isinstance(result.exception, UserError)
        assert "--epsilon-per-query must lie in" in str(result.exception)


def test_plan_from_options_is_calibrate() -> None:
    given = PlanOptions(epsilon=2.0, delta=1e-9, window=3600, start=0, end=86_400)
    counts = dataclasses.replace(given, mode="hits-with-counts")
    plan = plan_from_options(counts)
    assert plan.schedule.horizon == 24
    assert (plan.mode, plan.hits_per_user) == ("hits-with-counts", 10)
    by_default = plan_from_options(dataclasses.replace(given, usual_looks=(1, 10), most_looks=20))
    assert by_default.looks is not None
    assert by_default == Plan.calibrate(
        epsilon=2, delta=1e-9, schedule=WindowSchedule.fixed(0, 86_400, 3600), usual_looks=(1, 10), most_looks=20
    )
    sliding = plan_from_options(dataclasses.replace(counts, slide=1800))
    assert sliding.schedule.horizon == 49


def test_kms21_says_what_it_costs_and_what_costs_less() -> None:
    result = _run(*BUDGET, *HOURLY, "--mode", "kms21")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    marked = [line for line in result.stdout.splitlines() if "│ >" in line]
    assert len(marked) == 1
    assert "kms21" in marked[0]
    assert "W + min(V, 7,456), W of scale 74,560" in text
    assert "kms21 needs 4,241 times the noise of hits (scale 17.6, found from 530 users on)" in text
    assert "use --mode hits" in text
    assert "hits │" not in result.stdout
    assert "kms21 │" not in _run(*BUDGET, *HOURLY, *LABELS).stdout, "not among the choices unless asked for"


def test_the_accountant_of_kms21_is_its_own() -> None:
    result = _run(*BUDGET, *HOURLY, "--mode", "kms21", "--accountant", "game")
    assert isinstance(result.exception, UserError)
    assert "--accountant must be one of threshold_monitor for mode 'kms21', got 'game'" in str(result.exception)


def test_a_known_domain_lowers_the_threshold_and_shows_its_price(tmp_path: pathlib.Path) -> None:
    items, output = tmp_path / "items.txt", tmp_path / "plan.json"
    items.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(f"item {n}" for n in range(1000)).encode() + b"\n\n\nitem 3\n")
    result = _run(*BUDGET, *HOURLY, *LABELS, "--domain-file", str(items), "--output", str(output))
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "known domain 1,000 items; about 0.049 reports of items that nobody holds in the whole run" in text
    assert "delta, items of one user 0" in text
    plan = Plan.from_json(output.read_text())
    assert (plan.domain_size, plan.threshold) == (1000, 259)
    assert plan.domain.fingerprint == ItemDomain.of_ids([f"item {n}" for n in range(1000)]).fingerprint
    record = json.loads(
        _run(*BUDGET, *HOURLY, *LABELS, "--domain-file", str(items), "--threshold", "100", "--json").stdout
    )
    (chosen,) = [row for row in record["plans"] if row["chosen"]]
    assert chosen["threshold"] == 100
    assert 1000 * 384 * 0.001 < chosen["expected_false_reports"] < 1000 * 384 * 0.002
    assert {row["expected_false_reports"] <= 0.05 for row in record["plans"] if not row["chosen"]} == {True}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"", "must hold 1 to 10,000,000 different items, got 0. Write one item a line."),
        (b"\n\r\n\n", "must hold 1 to 10,000,000 different items, got 0. Write one item a line."),
        (b"good\nb\xffd\n", "must be UTF-8 text, one item a line; line 2 is not."),
        (b"a\n\n" + b"x" * 20_000, "must hold ids of at most 16,384 bytes; line 3 is longer."),
    ],
)
def test_what_is_not_a_list_of_items_is_refused(tmp_path: pathlib.Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "items.txt"
    if content is not None:
        path.write_bytes(content)
    result = _run(*BUDGET, *HOURLY, *LABELS, "--domain-file", str(path))
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == f"--domain-file {path} {message}"


def test_too_many_false_reports_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "items.txt"
    path.write_text("\n".join(map(str, range(300_000))))
    result = _run(*BUDGET, *HOURLY, *LABELS, "--domain-file", str(path), "--threshold", "1")
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith("--threshold = 1 would publish about 1.4")
