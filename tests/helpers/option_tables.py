"""The tables of docs/commands.md, made from the options, and of docs/python_api.md, made from docstrings:
`python -m tests.helpers.option_tables` writes them.

Of options the first cell is written by hand: it names the kind of value. Meaning and default are those of ``--help``. A
default that the help does not mention, such as "required", is kept. Rules between options are a table of their own, at
the end of the part of a command.
"""

from __future__ import annotations

import inspect
import pathlib
import re
from collections.abc import Mapping

import click

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "commands.md"
API_PAGE = DOCS / "python_api.md"
_ROW = re.compile(r"^\| `(--[a-z-]+)`((?:\\\||[^|])*)\| .* \| (.*?) ?\|$", re.MULTILINE)

_HEAD = "\n| of these options each | rule | because |\n|---|---|---|\n"
_RULES = re.compile(re.escape(_HEAD) + r"(\|.*\n)*")
_OPTION = re.compile(r"--[a-z-]+( (?!or\b|and\b)[\w:-]+)?")

_NAME = re.compile(r"^\| `(\w+)` \|.*$", re.MULTILINE)


def commands() -> dict[str, click.Command]:
    from dp_transforms.cli.subcommands import shh

    context = click.Context(shh)
    found = {name: shh.get_command(context, name) for name in shh.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def meaning_and_default(option: click.Option) -> tuple[str, str]:
    """Both as ``--help`` says them: a default of few words is in the help text, any other is the option's own."""
    text, _, words = re.sub(r" \[default: (.*)\]$", r" Default: \1.", option.help or "").partition(" Default: ")
    if words:
        return text, words.removesuffix(".")
    if option.required:
        return text, "required"
    if isinstance(option.show_default, str):
        return text, option.show_default
    shown = option.show_default and option.default is not None and not option.is_flag
    return text, str(option.default) if shown else ""


def with_tables(page: str, found: Mapping[str, click.Command]) -> str:
    """The page with the second and third cell of each row as the commands have them."""
    parts = re.split(r"^(?=## shh )", page, flags=re.MULTILINE)
    for at, part in enumerate(parts):
        heading = re.match(r"## shh (\w+)\n", part)
        if heading and heading[1] in found:
            command = found[heading[1]]
            inner = command.commands.values() if isinstance(command, click.Group) else ()
            options = {
                parameter.opts[0]: parameter
                for each in (*inner, command)  # of an option that both have, that of the command itself
                for parameter in each.params
                if isinstance(parameter, click.Option)
            }
            part = _RULES.sub("", part).rstrip() + "\n"
            parts[at] = _ROW.sub(lambda row, options=options: _row(row, options), part) + _rules(command)
            parts[at] += "\n" if at + 1 < len(parts) else ""
    return "".join(parts)


def _rules(command: click.Command) -> str:
    """The table of the rules between its options; empty without any."""
    rules = getattr(command, "rules", [])
    rows = [f"| {_in_code(rule.options)} | {_in_code(rule.in_short)} | {rule.why} |\n" for rule in rules]
    return f"{_HEAD}{''.join(rows)}" if rows else ""


def _in_code(text: str) -> str:
    """Options and their values in backticks."""
    return _OPTION.sub(r"`\g<0>`", text)


def _row(row: re.Match[str], options: Mapping[str, click.Option]) -> str:
    if row[1] not in options:
        return row[0]
    meaning, default = (text.replace("|", r"\|") for text in meaning_and_default(options[row[1]]))
    return f"| `{row[1]}`{row[2]}| {meaning} | {default or row[3]} |"


def documented_names(page: str) -> list[str]:
    """The first cells of the tables of docs/python_api.md."""
    return _NAME.findall(page)


def with_names(page: str) -> str:
    """The page with the first sentence of each name's docstring, and the file that it is in."""
    return _NAME.sub(lambda row: _row_of_name(row[1]), page)


def _row_of_name(name: str) -> str:
    import dp_transforms

    named = getattr(dp_transforms, name)
    what = re.split(r"(?<=\.)\s", inspect.cleandoc(named.__doc__).replace("\n", " ") + " ")[0]
    path = named.__module__.replace(".", "/") + ".py"
    return f"| `{name}` | {what.replace('``', '`')} | [{named.__module__}](../{path}) |"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(), commands()))
    API_PAGE.write_text(with_names(API_PAGE.read_text()))
