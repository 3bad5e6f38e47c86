"""``shh plan --from-log`` by its command line."""

import json
import re

import pytest
from click.testing import CliRunner

from dp_transforms.cli import plan_from_log
from dp_transforms.cli.plan import command
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from tests.helpers.replay_logs import START, write_log, write_parquet

DAY = ["--window", "1h", "--start", "2026-01-01", "--end", "2026-01-02"]
BUDGET = ["--epsilon", "2", "--delta", "1e-9", "--most-looks", "100"]
SAME, OTHER = ["--from-log-users", "same"], ["--from-log-users", "other"]
# Of 400 users 300 have 1 pair and 100 have 20, all in one hour: five of each hundred looks are below bucket 16 .. 31.
ROWS = [
    *((f"once-{user}", "news", START + user) for user in range(300)),
    *((f"often-{user}", f"item-{item}", START + item) for user in range(100) for item in range(20)),
]


@pytest.fixture
def log(tmp_path):
    write_parquet(tmp_path / "past.parquet", ROWS)
    return tmp_path / "past.parquet"


def run(*words):
    return CliRunner().invoke(command, [*map(str, words)])


def planned(*words):
    result = run(*BUDGET, *DAY, *words, "--json")
    assert result.exit_code == 0, repr(result.exception)
    record = json.loads(result.stdout)
    plan = Plan.from_json(json.dumps(record["chosen"]))
    assert plan.looks is not None
    return plan, record


def test_other_users_cost_nothing_and_set_the_usual_looks(log):
    plan, record = planned("--from-log", log, *OTHER)
    assert (plan.epsilon, plan.looks.activity_epsilon) == (2.0, None)
    assert plan.paid_looks.usual_looks == (1, 31)
    assert record["activity"] == {
        "users": "other",
        "epsilon": 0.0,
        "usual_looks": [1, 31],
        "edges": None,
        "histogram": None,
    }
    assert plan == Plan.calibrate(epsilon=2, delta=1e-9, schedule=plan.schedule, usual_looks=(1, 31), most_looks=100)


def test_the_same_users_pay_and_what_they_pay_is_said(log, tmp_path):
    output = tmp_path / "plan.json"
    result = run(*BUDGET, *DAY, "--from-log", log, *SAME, "--from-log-share", "0.25", "--output", output)
    assert result.exit_code == 0, repr(result.exception)
    plan = Plan.from_json(output.read_text())
    assert plan.looks is not None
    # Noise of scale 2 for each bucket: 100 or 300 users in one are never missed; an empty one above may look filled.
    assert (plan.epsilon, plan.paid_looks.activity_epsilon) == (1.5, 0.5)
    assert plan.paid_looks.usual_looks in ((1, 31), (1, 63), (1, 100))
    text = " ".join(result.stdout.split())
    assert "Everything published is (1.5, 1e-09)-differentially private" in text
    assert "the plan and everything published are together (2, 1e-09)-differentially private" in text
    assert "One noisy histogram of these users took epsilon 0.5" in text
    assert "read 2,300 rows; 0 outside the windows skipped" in result.stderr
    assert "2,300" not in result.stdout, "a count without noise is for the operator"


def test_two_percent_is_the_default_and_the_noise_is_fresh(log):
    found = [planned("--from-log", log, *SAME) for _ in range(2)]
    for plan, record in found:
        assert (plan.epsilon, plan.paid_looks.activity_epsilon) == (1.96, 2.0 - 1.96)
        assert record["activity"]["epsilon"] == plan.paid_looks.activity_epsilon
        assert record["activity"]["edges"] == [1, 2, 4, 8, 16, 32, 64]
    # Seven draws of scale 25 are equal with a probability below 10^-12.
    assert found[0][1]["activity"]["histogram"] != found[1][1]["activity"]["histogram"]


def test_a_log_with_too_few_users_leaves_the_default(tmp_path):
    write_parquet(tmp_path / "few.parquet", [("u", "i", START)])
    plan, record = planned("--from-log", tmp_path / "few.parquet", *SAME)
    if record["activity"]["usual_looks"] is None:  # noise fills a bucket in one run of twenty
        assert plan.paid_looks.usual_looks == (1, 100)
    assert plan.paid_looks.activity_epsilon > 0


def test_a_past_run_elsewhere_in_the_log(log):
    later = ["--window", "1h", "--start", "2026-03-01", "--end", "2026-03-02", "--from-log-start", "2026-01-01"]
    result = run(*BUDGET, *later, "--from-log", log, *OTHER, "--json")
    assert json.loads(result.stdout)["chosen"]["looks"]["usual_looks"] == [1, 31]
    result = run(*BUDGET, *later[:-2], "--from-log", log, *OTHER)
    assert isinstance(result.exception, UserError)
    assert "no event is inside the windows. Check --start, --end, --from-log-start" in str(result.exception)


def test_a_folder_of_another_format_is_read(tmp_path):
    """295 users have a pair in each of four hours, and five have twice as many: a thirtieth of all."""
    write_log(tmp_path / "log.avro")
    plan, _ = planned("--from-log", tmp_path, *OTHER)
    assert plan.paid_looks.usual_looks == (4, 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epsilon", "0.004"], "--from-log-share times --epsilon must lie in [0.0001, 32], got 8e-05."),
        (["--most-looks", "0"], "--most-looks must be a whole number in 1 .. 100000, got 0."),
        (["--delta", "1e-13"], "--delta must be > 5.42e-12"),
        (["--from-log-start", "9999-12-31"], "all windows must lie in the years 1 to 9999"),
        ([], "--from-log missing.csv: there is no such file or folder."),
    ],
)
def test_what_is_wrong_is_found_before_the_log_is_read(words, said):
    result = run(*BUDGET, *DAY, "--from-log", "missing.csv", *SAME, *words)
    assert isinstance(result.exception, UserError), repr(result.exception)
    assert said in str(result.exception)


def test_a_hostile_log_moves_one_bucket_by_one_and_shows_nothing(tmp_path, monkeypatch):
    """One user writes 8,004 rows: pairs, repeats, a long label, times outside, what is no id, unreadable lines."""
    honest = [json.dumps({"user": f"u{n}", "item": "news", "timestamp": "2026-01-01T01:00:00Z"}) for n in range(50)]
    hostile = []
    for number in range(2_000):
        row = {"user": "x", "item": f"secret-{number}", "timestamp": "2026-01-01T02:00:00Z"}
        hostile += [json.dumps({**row, **change}) for change in ({}, {}, {"timestamp": "0001-01-01"}, {"user": ""})]
    hostile += ['{"user": "x", "item": "' + "y" * 20_000 + '", "timestamp": "2026-01-01"}', "[]", "\x00", "{" * 300]
    monkeypatch.setattr(plan_from_log.secrets, "token_bytes", lambda size: b"\x7f" * size)  # one noise for both logs
    histograms = []
    for name, lines in (("without", honest), ("with", honest + hostile)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(lines) + "\n")
        result = run(*BUDGET, *DAY, "--from-log", path, *SAME, "--json")
        assert result.exit_code == 0, repr(result.exception)
        histograms.append(json.loads(result.stdout)["activity"]["histogram"])
        assert "secret-" not in result.output
        assert "u7" not in result.output
    differences = [after - before for before, after in zip(*histograms, strict=True)]
    assert differences == [0, 0, 0, 0, 0, 0, 1], "2,000 pairs are in the last bucket"


def test_a_log_of_which_most_cannot_be_read_ends_before_anything_is_drawn(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"user": "u", "item": "i", "timestamp": "2026-01-01"}\n' + "no json\n" * 2)
    result = run(*BUDGET, *DAY, "--from-log", path, *SAME)
    assert isinstance(result.exception, UserError)
    assert "--from-log: 2 of 3 rows cannot be read." in str(result.exception)
    assert not re.search("no json", result.output)


def test_a_histogram_that_is_paid_for_is_not_lost_where_its_usual_looks_allow_no_plan(log, monkeypatch):
    calibrate = plan_from_log.plan_from_options

    def only_default(options, activity_epsilon=None):
        if options.usual_looks is not None:
            raise UserError("--hits-per-user makes no user's weight larger.")
        return calibrate(options, activity_epsilon)

    monkeypatch.setattr(plan_from_log, "plan_from_options", only_default)
    done = run(*BUDGET, *DAY, "--from-log", log, *SAME, "--json")
    assert done.exit_code == 0, done.stderr
    assert "shh: warning: no plan for the usual looks of the log, so it is for others" in done.stderr
    chosen = json.loads(done.stdout)["chosen"]
    assert chosen["looks"]["usual_looks"] == [1, 100]
    assert chosen["looks"]["activity_epsilon"] > 0
