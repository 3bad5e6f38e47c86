"""``shh --config FILE``: options of commands in a TOML file."""

import os

import pytest

from tests.helpers.shh_here import shh

FILE = """
[plan]
epsilon = 2
delta = 1e-9
window = "1h"
start = 2026-01-01
end = 2026-01-03T00:00:00Z
usual_contributions = [1, 50]
most_contributions = 50
forget-after = 0

[replay]
user-field = "who"

[ledger.reserve]
population = "news"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "shh.toml").write_text(FILE)
    return tmp_path


def test_a_file_says_what_the_command_line_would_say_and_the_command_line_wins(folder):
    words = [
        *("--epsilon", "1", "--delta", "1e-9", "--window", "1h", "--start", "2026-01-01", "--end", "2026-01-03"),
        *("--usual-contributions", "1", "50", "--most-contributions", "50", "--forget-after", "0"),
    ]
    by_file = shh("--config", "shh.toml", "plan", "--json", "--epsilon", "1", cwd=folder)
    by_words = shh("plan", *words, "--json")
    assert by_file.returncode == 0, by_file.stderr
    assert by_file.stdout == by_words.stdout


def test_a_table_of_another_command_changes_nothing_and_inner_commands_have_their_own(folder):
    assert shh("--config", "shh.toml", "simulate", "--users", "1", "--output", "log.csv", cwd=folder).returncode == 0
    ended = shh("--config", "shh.toml", "ledger", "reserve", "--ledger", "l.db", "--plan", "no.json", cwd=folder)
    assert (ended.returncode, "no.json" in ended.stderr) == (1, True), "the population was taken from the file"


def test_a_file_of_the_folder_is_found_and_named_unless_another_one_is_meant(folder):
    named = shh("--config", "shh.toml", "plan", "--json", cwd=folder)
    found = shh("plan", "--json", cwd=folder)
    assert (found.stdout, found.stderr) == (
        named.stdout,
        f"plan: options of ./shh.toml count, but for those of the command line.\n{named.stderr}",
    )
    (folder / "other.toml").write_text("[plan]\nepsilon = 1\n")
    other = shh("--config", "other.toml", "plan", "--json", cwd=folder)
    assert (other.returncode, "shh.toml" in other.stderr) == (2, False)
    unnamed = shh("simulate", "--users", "1", "--output", "log.csv", cwd=folder)
    assert (unnamed.returncode, "shh.toml" in unnamed.stderr) == (0, False), "there is no table for it"
    (folder / "shh.toml").unlink()
    (folder / "shh.toml").symlink_to("nowhere")
    lost = shh("plan", "--json", cwd=folder)
    assert (lost.returncode, lost.stderr[:28]) == (1, "shh: shh.toml cannot be read")


def test_an_option_of_the_file_counts_as_given(folder):
    """A look at a log keeps it, as it keeps one of the command line."""
    (folder / "log.csv").write_text("who,user,item,timestamp\nw,u,i,2026-01-01\n")
    looked = shh("--config", "shh.toml", "replay", "log.csv", cwd=folder)
    assert "--user-field who" in looked.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[plam]\n", "there is no command 'plam'. Do you mean plan?"),
        ("epsilon = 2\n", "there is no command 'epsilon'"),
        ("[plan]\nepsillon = 2\n", "[plan] 'epsillon' is no option that a file may set. Do you mean epsilon?"),
        ("[plan]\nepsilon = true\n", "[plan] 'epsilon' must be a text or a number"),
        ("[plan]\nusual-contributions = 5\n", "'usual-contributions' must be a list of 2 values"),
        ("[plan]\njson = 1\n", "'json' must be true or false"),
        (f"[plan]\nepsilon = {'7' * 5000}\n", "has a value that is too large"),
        (f"[plan]\nepsilon = 0x{'7' * 5000}\n", "'epsilon' is too large a number"),
        (f"[plan]\n{'a.' * 30_000}b = 1\n", "has a line with more than 100 dots"),
        (f"[plan]\n{'# much' * 20_000}", "has more than 64 KB"),
        ("[plan\n", "is not TOML"),
        ("\udcff", "is not UTF-8 text"),
    ],
)
def test_what_a_file_cannot_mean_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "shh.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    ended = shh("--config", "shh.toml", "plan", cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert ended.stderr.startswith("shh: shh.toml")
    assert message in ended.stderr


def test_only_a_regular_file_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("pipe.toml", "nowhere.toml"):
        ended = shh("--config", name, "plan", cwd=tmp_path)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
        assert f"shh: {name} cannot be read" in ended.stderr


def test_the_option_has_a_place_and_says_so(tmp_path):
    ended = shh("plan", "--config", "shh.toml", cwd=tmp_path)
    assert ended.returncode == 2
    assert "It belongs before the command: shh --config ... plan" in ended.stderr
