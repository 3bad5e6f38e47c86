"""The lists of options in docs/commands.md, made from the commands. `python -m tests.helpers.option_tables` writes it.

A list stands between ``<!-- options of replay -->`` and ``<!-- end -->``; what several commands have is there once.
Kind, meaning and default are those of ``--help``, the meaning as far as its first clause.
"""

from __future__ import annotations

import pathlib
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import click

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "commands.md"
SHARED = "several commands"
_BLOCK = re.compile(r"^<!-- options of ([a-z ]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_CLAUSE = re.compile(
    r"(?:(?:With|Where) [^:]*: )?.*?(?=[:;] | \((?!window)|\.(?: (?!\d)|$)|$)"
)  # "With looks: ..." goes on
_SENTENCE_ENDS = re.compile(r"(?<=[^.]..\.) (?!\d)")


class Said(NamedTuple):
    """What the page says of an option."""

    name: str
    kind: str
    meaning: str
    default: str

    def line(self) -> str:
        words = [
            f"{_CLAUSE.findall(self.meaning)[0]}.",
            f"Default: {_SENTENCE_ENDS.split(self.default)[0].removesuffix('.')}." if self.default else "",
        ]
        return _wrapped(f"- `{' '.join(filter(None, (self.name, self.kind)))}`: {' '.join(filter(None, words))}")


def commands() -> dict[str, click.Command]:
    from dp_transforms.cli.subcommands import shh

    context = click.Context(shh)
    found = {name: shh.get_command(context, name) for name in shh.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def options_of(command: click.Command) -> dict[str, Said]:
    """Of a group also those of its commands; of an option that both have, that of the group itself."""
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return {
        parameter.opts[0]: said(parameter)
        for each in (*inner, command)
        for parameter in each.params
        if isinstance(parameter, click.Option) and parameter.opts[0] != "--help-all"
    }


def said(option: click.Option) -> Said:
    """As ``--help`` says it: a default of few words is in the help text, any other is the option's own."""
    text, _, words = re.sub(r" \[default: (.*)\]$", r" Default: \1.", option.help or "").partition(" Default: ")
    return Said(option.opts[0], _kind(option), text, words.removesuffix(".") or _default(option))


def _kind(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(option.type.choices)
    return option.type.name.upper().removesuffix(" RANGE")


def _default(option: click.Option) -> str:
    if option.required:
        return "none, required"
    shown = option.show_default and isinstance(option.default, (str, int, float)) and not option.is_flag
    return str(option.default) if shown else ""


def with_options(page: str, found: Mapping[str, click.Command]) -> str:
    """The page with the options of these commands between its marks."""
    options = {name: [one.line() for one in options_of(command).values()] for name, command in found.items()}
    of_several = _of_several(options)

    def block(mark: re.Match[str]) -> str:
        name = mark[1]
        if name == SHARED:
            lines = _listed(of_several)[1:]
        else:
            lines = [one for one in options[name] if one not in of_several]
        return "\n".join([f"<!-- options of {name} -->", "", *lines, "", "<!-- end -->"])

    return _BLOCK.sub(block, page)


def _of_several(lines: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """The lines that more than one command has, and which these are."""
    having: dict[str, list[str]] = {}
    for name, each in lines.items():
        for line in each:
            having.setdefault(line, []).append(name)
    return {line: tuple(names) for line, names in having.items() if len(names) > 1}


def _listed(shared: Mapping[str, tuple[str, ...]]) -> list[str]:
    lines: list[str] = []
    for names in dict.fromkeys(shared.values()):
        commands = " and ".join(filter(None, (", ".join(f"`{name}`" for name in names[:-1]), f"`{names[-1]}`")))
        lines += ["", f"Of {commands}:", "", *(line for line, having in shared.items() if having == names)]
    return lines


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(with_options(PAGE.read_text(), commands()))
