"""Passwords, tokens and signatures in URLs: whatever a command is asked, none of them comes back in what it says."""

import logging
import pathlib
import traceback

import click
import pytest

from dp_transforms.checks import shown, without_secrets
from dp_transforms.cli import operator_log
from tests.cli.command_paths import READ, STREAM, WRITTEN, make_inputs, parameters
from tests.helpers.shh_here import logs_as_before, shh

SECRET = "Tr0ub4dor"
URLS = [
    f"postgresql://u:my {SECRET}@h.invalid/d",
    f"https://{SECRET}@a.invalid/c/x?sv=1&sig={SECRET}&se=2",
]
# A whole command line for each option that takes a path or a URL.
WRITING = {place: [*words[:-1], f"PATH{pathlib.PurePath(words[-1]).suffix}"] for place, words in WRITTEN.items()}
LINES = {**READ, **WRITING, ("stream", "input"): ["stream", *STREAM.replace("logs", "PATH", 1).split()]}


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("url", URLS)  # how other ones are hidden: below
def test_no_command_says_a_secret_of_a_url(tmp_path, url):
    """With the ending that a command wants."""
    make_inputs(tmp_path)
    for place, words in LINES.items():
        ending = next((pathlib.PurePath(word).suffix for word in words if word.startswith("PATH.")), "")
        ended = shh(*[word.replace(f"PATH{ending}", f"{url}{ending}") for word in words], cwd=tmp_path)
        assert ended.returncode in (1, 2), place
        assert SECRET not in ended.stdout + ended.stderr, place


@pytest.mark.usefixtures("no_waiting")
def test_no_option_says_a_secret_that_is_given_to_it(tmp_path):
    """Each one of each command, whatever it wants."""
    make_inputs(tmp_path)
    value = f"//u:{SECRET}@h/d?sig={SECRET} api_key={SECRET} password='x {SECRET}'"
    for command, parameter in parameters():
        if isinstance(parameter, click.Option) and not parameter.is_flag:
            log = ["log.jsonl"] * (command == "doctor")  # it prints how to read it
            ended = shh(*command.split(), *log, parameter.opts[0], *[value] * parameter.nargs, cwd=tmp_path)
            assert ended.returncode in (1, 2), (command, parameter.name)
            assert SECRET not in ended.stdout + ended.stderr, (command, parameter.name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"'postgres://u:{SECRET}@h/d' exists. Ask a@b.", "'postgres://u:***@h/d' exists. Ask a@b."),
        (f"postgres://u:my 1/@{SECRET}@h/d", "postgres://u:***@h/d"),
        (f"/home/postgres:/u:{SECRET}@h/d", "/home/postgres:/u:***@h/d"),
        (f"https://h/x?sig={SECRET}&st=1, or y", "https://h/x?sig=***&st=1, or y"),
        (f"'//u:{SECRET}@h/d', //{SECRET}@h", "'//u:***@h/d', //***@h"),
        (f"host=h password={SECRET} api_key='x {SECRET}'", "host=h password=*** api_key=***"),
        (f"password='a\"b\\' {SECRET}' x", "password=*** x"),
        (f"AccountName=a;AccountKey={SECRET}==;x", "AccountName=a;AccountKey=***;x"),
        ("kafka://localhost:9092/t, not a@b; add ?token= and", "kafka://localhost:9092/t, not a@b; add ?token= and"),
        ("http://[::1]:8765/ for a@b", "http://[::1]:8765/ for a@b"),
    ],
)
def test_what_is_hidden_and_what_is_not(text, said):
    assert without_secrets(text) == without_secrets(said) == said


@pytest.mark.parametrize("part", ["x", "a://b:", "?token", ";", "a:", "://", "@a://", "?a=@b:", "//", "a='", "a='\\\\"])
def test_a_hostile_word_is_searched_in_no_time(part):
    """A hundred times as long took minutes."""
    text = part * (1_000_000 // len(part))
    assert len(shown(text)) < 1000
    assert len(without_secrets(text)) <= 20_000


def test_tracebacks_and_logs_of_libraries_are_veiled_too(capsys):
    with logs_as_before(), operator_log.kept_streams():
        logging.basicConfig(level=logging.INFO, force=True)
        logging.getLogger("library").error("no connection to %s", URLS[0])
        try:
            raise KeyError(URLS[0])
        except KeyError:
            traceback.print_exc()
    said = capsys.readouterr().err
    assert SECRET not in said
    assert "KeyError: 'postgresql://u:***@h.invalid/d'" in said
