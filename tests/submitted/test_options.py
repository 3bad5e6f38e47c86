"""The commands and the programs that one submits have the same options, with the same meaning."""

from __future__ import annotations

import argparse

import click
import pytest

from dp_transforms.cli import replay, stream
from tests.helpers.submitted_jobs import REPLAY, STREAM, script

# The log is an argument of the command; and only Dataflow takes a key from Secret Manager. The last two are for
# clusters with topics alone.
OF_PROGRAMS_ALONE = {"--help", "--log", "--noise-key-secret", "--stop-file", "--partitions"}


@pytest.mark.parametrize(("name", "command"), [(REPLAY, replay.command), (STREAM, stream.command)])
def test_each_option_of_a_program_is_one_of_its_command(name: str, command: click.Command) -> None:
    parser: argparse.ArgumentParser = script(name).parser()
    theirs = {each.opts[0]: each for each in command.params if isinstance(each, click.Option)}
    ours = {flag: action for flag, action in parser._option_string_actions.items() if flag.startswith("--")}
    assert set(ours) - set(theirs) <= OF_PROGRAMS_ALONE
    for flag, action in ours.items():
        if flag in theirs:
            option = theirs[flag]
            if choices := getattr(option.type, "choices", None):
                assert set(action.choices or ()) <= set(choices), flag
            assert action.required or (action.default or None) == (option.to_info_dict()["default"] or None), flag
            assert option.nargs == 1, flag
            assert option.multiple == isinstance(action, argparse._AppendAction), flag
