"""The lists of options in docs/commands.md, made from the commands, and of names in docs/python_api.md, made from their
docstrings: `python -m tests.helpers.option_tables` writes them.

A list stands between ``<!-- options of replay -->`` and ``<!-- end -->``; what several commands have is there once.
Kind, meaning and default are those of ``--help``.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import click

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "commands.md"
API_PAGE = DOCS / "python_api.md"
SHARED = "several commands"
_BLOCK = re.compile(r"^<!-- options of ([a-z ]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"--[a-z-]+( (?!or\b|and\b)[\w:-]+)?")
_NAME = re.compile(r"^- `(\w+)`(?:.*\n)(?:  .*\n)*", re.MULTILINE)


class Said(NamedTuple):
    """What the page says of an option."""

    name: str
    kind: str
    meaning: str
    default: str

    def line(self) -> str:
        words = [self.meaning, f"Default: {self.default}." if self.default else ""]
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
        return "none, it is required"
    if isinstance(option.show_default, str):
        return option.show_default
    shown = option.show_default and option.default is not None and not option.is_flag
    return str(option.default) if shown else ""


def with_options(page: str, found: Mapping[str, click.Command]) -> str:
    """The page with the options of these commands between its marks."""
    options = {name: options_of(command) for name, command in found.items()}
    having: dict[Said, list[str]] = {}
    for name, each in options.items():
        for one in each.values():
            having.setdefault(one, []).append(name)
    shared = {one: names for one, names in having.items() if len(names) > 1}

    def block(mark: re.Match[str]) -> str:
        name = mark[1]
        lines = (
            _of_several(shared) if name == SHARED else [*_of_one(options[name].values(), shared), *_rules(found[name])]
        )
        return "\n".join([f"<!-- options of {name} -->", "", *lines, "", "<!-- end -->"])

    return _BLOCK.sub(block, page)


def _of_several(shared: Mapping[Said, Iterable[str]]) -> list[str]:
    lines: list[str] = []
    for names in dict.fromkeys(tuple(names) for names in shared.values()):
        of = " and ".join(filter(None, (", ".join(f"`{name}`" for name in names[:-1]), f"`{names[-1]}`")))
        lines += ["", f"Of {of}:", "", *(one.line() for one, having in shared.items() if tuple(having) == names)]
    return lines[1:]


def _of_one(options: Collection[Said], shared: Mapping[Said, Iterable[str]]) -> list[str]:
    own = [one.line() for one in options if one not in shared]
    return [*own, *(["", f"And those [of {SHARED}](#options-of-several-commands)."] if len(own) < len(options) else [])]


def _rules(command: click.Command) -> list[str]:
    """The rules between its options, from the table that checks them; nothing without any."""
    rules = getattr(command, "rules", [])
    lines = [
        _wrapped(f"- {_in_code(rule.options)}: {_in_code(rule.in_short)}{f' ({rule.why})' if rule.why else ''}.")
        for rule in rules
    ]
    return ["", "What goes together:", "", *lines] if lines else []


def _in_code(text: str) -> str:
    """Options and their values in backticks."""
    return _OPTION.sub(r"`\g<0>`", text)


def _wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def documented_names(page: str) -> list[str]:
    """What the lists of docs/python_api.md name."""
    return _NAME.findall(page)


def with_names(page: str) -> str:
    """The page with the first sentence of each name's docstring, and the file that it is in."""
    return _NAME.sub(lambda item: _item_of_name(item[1]), page)


def _item_of_name(name: str) -> str:
    import dp_transforms

    named = getattr(dp_transforms, name)
    what = re.split(r"(?<=\.)\s", inspect.cleandoc(named.__doc__).replace("\n", " ") + " ")[0]
    path = named.__module__.replace(".", "/") + ".py"
    return _wrapped(f"- `{name}` ([{path.rpartition('/')[2]}](../{path})): {what.replace('``', '`')}") + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_options(PAGE.read_text(), commands()))
    API_PAGE.write_text(with_names(API_PAGE.read_text()))
