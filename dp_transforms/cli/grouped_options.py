"""Options in groups, for commands that have dozens of them: ``--help`` shows those of every day, ``--help-all`` all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
INPUT, BUDGET, OUTPUT, ENGINE, ADVANCED = "Input", "Budget", "Output", "Engine", "Advanced"
GROUPS = (INPUT, BUDGET, OUTPUT, ENGINE, ADVANCED)
_SHOWS_ALL = "shh.help_all"


class GroupedOption(click.Option):
    """group: one of `GROUPS`. brief: what the short help says of it; without, only the long one has it. needed: what
    stands behind an option that a run needs; click cannot know, since a plan or another input may stand for it."""

    def __init__(self, *names: Any, group: str, brief: str = "", needed: str = "", **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.group, self.brief, self.needed = group, brief, needed

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if self.brief and not ctx.meta.get(_SHOWS_ALL):
            kind = str(self.name).rpartition("_")[2].upper() if isinstance(self.type, click.Choice) else None
            takes = "" if self.is_flag else f" {self.metavar or kind or self.type.name.upper()}"
            record: tuple[str, str] | None = self.opts[0] + takes, self.brief
        else:
            record = super().get_help_record(ctx)
        return (record[0], f"{record[1]} [{self.needed}]") if record and self.needed else record


def option(group: str, *names: str, **attributes: Any) -> Callable[[AnyFunction], AnyFunction]:
    """`click.option` of a group; attributes: also those of `GroupedOption`."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


def add_options(function: AnyFunction, *options: Callable[[AnyFunction], AnyFunction]) -> AnyFunction:
    """The function with these options, in this order."""
    for each in reversed(options):
        function = each(function)
    return function


class GroupedCommand(click.Command):
    """A command with `GroupedOption`s, and ``--help-all``."""

    def __init__(self, *words: Any, **attributes: Any) -> None:
        super().__init__(*words, **attributes)
        shows: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
        self.params.append(GroupedOption(["--help-all"], group=ADVANCED, help="Show all options.", **shows))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.params if isinstance(each, GroupedOption)]
        shown = [each for each in options if each.brief or ctx.meta.get(_SHOWS_ALL)]
        for group in GROUPS:
            of_group = sorted((each for each in shown if each.group == group), key=lambda each: not each.needed)
            if of_group:
                with formatter.section(group):
                    formatter.write_dl([record for each in of_group if (record := each.get_help_record(ctx))])
        if len(shown) < len(options):
            formatter.write(f"\nAll {len(options)} options: {ctx.command_path} --help-all\n")


def _show_all(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
