"""Readers of what an operator writes by hand: the file of --config, and titles of items."""

from __future__ import annotations

import csv
import functools
import io
from typing import Any

import click

from dp_transforms.cli.shared_options import read_titles
from dp_transforms.cli.subcommands import defaults_of, read_config, shh
from dp_transforms.errors import UserError
from tests.fuzz.reader import FaultError, Reader, Sample, place_file

_CONFIG = """
[replay]
epsilon = 2
delta = "1e-9"
start = 2026-01-01T00:00:00Z
user-field = "reader"
allow-empty = true

[stream]
input = "logs"
idle-timeout = "5m"

[ledger.reserve]
population = "news"
"""


@functools.cache
def _config_samples() -> list[Sample]:
    return [
        Sample("tables", _CONFIG.encode(), ".toml"),
        Sample("numbers", b"[replay]\nepsilon = 0.5\nmost-contributions = 0x7f\nuntil = 2026-01-02\n", ".toml"),
    ]


def _read_config(_sample: Sample, path: str) -> Any:
    """Options that are accepted are those of commands, as texts of a command line."""
    with click.Context(shh) as context:
        found = {}
        for name, table in read_config(path, shh.list_commands(context)).items():
            command = shh.get_command(context, name)
            if command is None:
                raise FaultError("command", "a table of no command")
            found[name] = defaults_of(path, command, table)
    return repr(found)


@functools.cache
def _titles_samples() -> list[Sample]:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(
        [["item", "title", "x"], ["a", 'First, "quoted"', ""], ["b", "two\nlines", ""], [], ["Ü", "x"]]
    )
    return [
        Sample("titles", text.getvalue().encode(), ".csv"),
        Sample("mark", b"\xef\xbb\xbftitle,item\r\nOne,1\r\nTwo,2\r\n", ".csv"),
    ]


def _read_titles(_sample: Sample, path: str) -> Any:
    return sorted(read_titles(path).items())


def option_readers() -> list[Reader]:
    public: dict[str, Any] = {"marks": ()}
    return [
        Reader("config", _config_samples, (UserError,), place_file, _read_config, cost=1, **public),
        Reader("titles", _titles_samples, (UserError,), place_file, _read_titles, cost=0.3, **public),
    ]
