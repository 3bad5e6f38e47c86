"""Rules between options: each command line below breaks one, and each rule is broken by one.

What is said here is written by hand: a rule that is lost, or says something else, is found. That a command checks its
rules before anything else, and with which exit code it ends, is held below for one of each kind.
"""

import shlex

import pytest

from dp_transforms.cli.options import RuledCommand, broken_rules
from tests.helpers.option_tables import commands
from tests.helpers.shh_here import shh

REFUSED = {
    "plan": """
        --max-items-per-user 5: --max-items-per-user needs --charge hits.
        --threshold 5: --threshold needs --charge hits.
        --hits-per-user 3: --hits-per-user needs --charge hits.
        --usual-contributions 1 2 --charge hits: --usual-contributions needs --charge contributions.
        --forget-after 0 --charge hits: --forget-after needs --charge contributions.
    """,
    "replay": """
        --plan p --epsilon 2: --epsilon cannot be used with --plan: the plan sets it already.
        --plan p --max-items-per-user 5: --max-items-per-user cannot be used with --plan
        --max-items-per-user 5: --max-items-per-user needs --charge hits.
        --most-contributions 5 --charge hits: --most-contributions needs --charge contributions.
        --dry-run --state s --noise-key-file k: --dry-run cannot be used with --state: only the state knows which part
        --page-title t: --page-title needs --html.
        --html p.html --state s --noise-key-file k: --html cannot be used with --state: there is no whole report
        --until 2026-01-01: --until needs --state.
        --state s: --state needs --noise-key-file: all parts of a run have one key, since users are recognised by it.
        --population p: --population needs --ledger.
        --max-epsilon 2: --max-epsilon needs --ledger.
        --ledger l: --ledger needs --population: a name for all streams that share users with this one.
        --run-id mine --noise-key-file k: --run-id cannot be used with --noise-key-file: if both were used again
    """,
    "show": """
        --last 3 --all: --last cannot be used with --all.
        --titles t.csv --json: --titles cannot be used with --json
        --page-title t: --page-title needs --html.
        --force: --force needs --html or --output
    """,
    "stream": """
        --input f --output o --plan p --delta 1e-9: --delta cannot be used with --plan
        --input f --output o --threshold 5: --threshold needs --charge hits.
        --input f --output o --forget-after 5 --charge hits: --forget-after needs --charge contributions.
        --input f --producer-times --output o: --producer-times needs --input TOPIC.
        --input kafka://h:1/t --csv-separator ; --output o: --csv-separator needs --input PATH: it is for files.
        --input kafka://h:1/t --clock event --producer-times --output o: --producer-times needs --clock arrival.
        --input f --output o --output-kafka-config c: --output-kafka-config needs --output TOPIC.
        --input f --output o --titles t: --titles needs --html: they are for the page.
        --input f --output o --max-delta 1e-6: --max-delta needs --ledger.
        --input f --output o --ledger l: --ledger needs --population
        --input f --output o --allow-empty: --allow-empty needs --once: other runs wait for events.
    """,
}
ALLOWED = {
    "replay": """
        --run-id mine --noise-key-file k --state s
    """,
    "stream": """
        --input kafka://h:1/t --output kafka://h:1/r --output-kafka-config c
        --input kafka://h:1/t --producer-times --output o
    """,
    "plan": """
        --threshold 5 --charge hits
        --use stream --charge hits
    """,
    "show": "--last 3 --html a.html --force",
}


def rules_broken_by(name, words):
    argument = ["log"] if name in ("replay", "show") else []
    command = commands()[name]
    return list(broken_rules(command.make_context(name, [*argument, *shlex.split(words)])))


def test_each_rule_refuses_what_it_should_and_says_so():
    rules = {name: command.rules for name, command in commands().items() if isinstance(command, RuledCommand)}
    assert {name for name, found in rules.items() if found} == set(REFUSED)
    for name, lines in REFUSED.items():
        left = list(rules[name])
        for line in filter(None, map(str.strip, lines.splitlines())):
            words, _, said = line.partition(": ")
            rule, message = rules_broken_by(name, words)[0]
            assert message.startswith(said), (name, words, message)
            assert message.endswith((".", "noise.key)")), message
            left = [other for other in left if other != rule]
        assert not left, (name, left)


def test_what_no_rule_speaks_of_is_allowed():
    for name, lines in ALLOWED.items():
        for words in filter(None, map(str.strip, lines.splitlines())):
            assert rules_broken_by(name, words) == [], (name, words)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("replay nowhere.csv --until 2026-01-01", 1, "shh: --until needs --state."),
        ("stream --input nowhere", 2, "Error: Missing option '--output'"),
        ("show nowhere.avro --last 3 --all", 2, "Error: --last cannot be used with --all."),
        ("plan --threshold 5", 2, "Error: --threshold needs --charge hits"),
    ],
)
def test_a_command_checks_its_rules_before_it_looks_at_anything(tmp_path, words, code, said):
    result = shh(*words.split(), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.splitlines()[-1].startswith(said)
    assert list(tmp_path.iterdir()) == []


def test_an_option_in_a_file_is_given_and_a_flag_that_is_false_is_not(tmp_path):
    (tmp_path / "shh.toml").write_text('[show]\nforce = false\nlast = 3\nall = false\n[replay]\nuntil = "2026-01-01"\n')
    config = ("--config", "shh.toml")
    assert "--until needs --state" in shh(*config, "replay", "nowhere.csv", cwd=tmp_path).stderr
    assert "nowhere.avro" in shh(*config, "show", "nowhere.avro", cwd=tmp_path).stderr
