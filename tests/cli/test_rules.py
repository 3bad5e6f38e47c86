"""Rules between options: each command line below breaks one, and is refused before anything is looked at."""

import shlex

import pytest

from tests.helpers.shh_here import shh

STREAM = "--input f --output o"
TOPIC = "--input kafka://h:1/t --output o"
# command: command lines, and how the error begins. They are written by hand: a rule that is lost is found.
REFUSED = {
    "replay log": """
        --plan p --output r.avro --epsilon 2: --epsilon cannot be used with --plan: the plan sets it already.
        --plan p --output r.avro --max-items-per-user 5: --max-items-per-user cannot be used with --plan
        --plan p --output r.avro --counts: --counts cannot be used with --plan
        --until 2026-01-01 --output r.avro: --until needs --state. Give --state FILE
        --state s --output r.avro: --state needs --noise-key-file: all parts of a run have one key, since users are
        --state s3://b/s --noise-key-file k --output r.avro: --state must be a path on a disk, got a URL.
        --population p --output r.avro: --population needs --ledger.
        --caps 2 1e-6 --output r.avro: --caps needs --ledger.
        --ledger l --output r.avro: --ledger needs --population: a name for all streams that share users.
        --run-id mine --noise-key-file k --output r.avro: --run-id cannot be used with --noise-key-file: if both
    """,
    "show report.avro": """
        --titles t.csv --json: --titles cannot be used with --json: lines for programs have labels.
    """,
    "stream": f"""
        {STREAM} --plan p --delta 1e-9: --delta cannot be used with --plan
        {STREAM} --clock producer: --clock producer needs a topic as --input.
        {STREAM} --kafka-config c: --kafka-config needs a topic as --input.
        {TOPIC} --csv-separator x: --csv-separator needs a folder as --input: it is for files.
        {STREAM} --titles t.csv: --titles needs --html: they are for the page.
        {STREAM} --caps 2 1e-6: --caps needs --ledger.
        {STREAM} --ledger l: --ledger needs --population
        {STREAM} --noise-key-file s3://b/k: --noise-key-file must be a path, got a URL.
    """,
    "plan --epsilon 2 --delta 1e-9 --window 1h --start 2026-01-01 --end 2026-01-02": """
        --max-items-per-user 5: --max-items-per-user cannot be used with charge 'contributions': it belongs to hits.
        --hits-per-user 3: --hits-per-user cannot be used with charge 'contributions': it belongs to hits. Leave
        --counts: --counts cannot be used with charge 'contributions': it belongs to hits.
        --most-contributions 5 --charge hits: --most-contributions cannot be used with charge 'hits'
        --usual-contributions 1 2 --charge hits: --usual-contributions cannot be used with charge 'hits'
        --least-users 9 --charge hits: --least-users cannot be used with charge 'hits': it belongs to contributions.
    """,
}
LINES = [
    (f"{command} {words.strip()}", said)
    for command, lines in REFUSED.items()
    for words, _, said in (line.strip().partition(": ") for line in lines.strip().splitlines())
]


@pytest.mark.parametrize(("words", "said"), LINES)
def test_each_rule_refuses_what_it_should_and_says_so(tmp_path, words, said):
    (tmp_path / "f").mkdir()
    (tmp_path / "t.csv").write_text("item,title\n")
    (tmp_path / "c").touch()
    result = shh(*shlex.split(words), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith(f"shh: {said}")
    assert result.stderr.strip().endswith((".", "noise.key)"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "f", "t.csv"]


@pytest.mark.parametrize("command", ["replay", "stream"])
def test_the_help_of_a_command_fits_a_screen_and_all_of_it_two(command, tmp_path):
    for words, most in (("--help", 50), ("--help-all", 90)):
        assert len(shh(command, words, cwd=tmp_path, COLUMNS="80").stdout.splitlines()) <= most
