"""The help of commands with dozens of options: in groups, what a run needs first, and short unless all is asked for."""

import itertools

import click
from click.testing import CliRunner

from dp_transforms.cli.options import ENGINE, GROUPS, GroupedCommand, GroupedOption
from dp_transforms.cli.subcommands import shh
from tests.helpers.option_tables import commands

_MANY = ("plan", "replay", "stream")
_WIDTH, _MOST_LINES, _MOST_OPTIONS = 80, 42, 25


def _help(command, word):
    result = CliRunner().invoke(shh, [command, word], terminal_width=_WIDTH, prog_name="shh")
    assert result.exit_code == 0, result.output
    return result.output.partition("\nRules:\n")[0].splitlines()


def _options(command):
    return [each for each in commands()[command].params if isinstance(each, click.Option)]


def test_commands_with_many_options_have_groups():
    for name, command in commands().items():
        assert isinstance(command, GroupedCommand) == (name in _MANY) == (len(command.params) > 15), name


def test_every_option_has_a_group_and_the_long_help_shows_each_once():
    for command in _MANY:
        lines = _help(command, "--help-all")
        for option in _options(command):
            assert isinstance(option, GroupedOption), (command, option.opts)
            assert option.group in GROUPS, (command, option.opts)
            name = option.opts[0]
            assert sum(line.startswith(f"  {name} ") or line == f"  {name}" for line in lines) == 1, (command, name)
        groups = [group for group in GROUPS if group != ENGINE or command != "plan"]
        assert [line[:-1] for line in lines if line[:-1] in GROUPS] == groups


def test_what_a_run_needs_comes_first_in_its_group():
    for command, word in itertools.product(_MANY, ("--help", "--help-all")):
        options = [option for option in _options(command) if isinstance(option, GroupedOption)]
        needed = {option.opts[0] for option in options if option.needed or option.required}
        assert {"--epsilon", "--delta", "--window", "--start", "--end"} <= needed
        assert command == "plan" or {"--plan", "--output"} <= needed
        had_another = False
        for line in _help(command, word):
            if line[:-1] in GROUPS:
                had_another = False
            elif line.startswith("  --"):
                name = line.split()[0]
                assert not (name in needed and had_another), (command, name)
                had_another = had_another or name not in needed


def test_the_short_help_fits_on_a_screen_and_names_the_long_one():
    for command in _MANY:
        lines = _help(command, "--help")
        assert len(lines) <= _MOST_LINES
        assert sum(line.startswith("  --") for line in lines) <= _MOST_OPTIONS
        assert max(map(len, lines)) <= _WIDTH
        briefs = [option for option in _options(command) if isinstance(option, GroupedOption) and option.brief]
        for option in briefs:
            name = option.opts[0]
            assert sum(line.startswith(f"  {name}") and option.brief in line for line in lines) == 1, (command, name)
        assert lines[-1] == f"All {len(_options(command))} options: shh {command} --help-all"
        assert not any(line.startswith("All ") for line in _help(command, "--help-all"))
