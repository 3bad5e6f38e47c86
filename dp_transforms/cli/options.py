"""What commands are declared with: options of click, in lists that commands share, and one class of commands.

Commands have dozens of options, so they stand in groups: ``--help`` shows those of every day, ``--help-all`` all.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from dp_transforms.errors import InputError, UserError
from dp_transforms.plan.window_schedule import parse_duration, parse_utc

INPUT, BUDGET, OUTPUT, ENGINE = "Input", "Budget", "Output", "Engine"
MAKE_A_KEY = "Make one with: (umask 077; head -c 32 /dev/urandom > noise.key)"
UNREADABLE = 2  # exit code of a command line that cannot be read, or is not complete
_SHOWS_ALL = "shh.help_all"
_MOST_WITHOUT_GROUPS = 14

Options = types.SimpleNamespace
"""The options of a command line, by their names; None, False or () for what was not given."""


class Option(click.Option):
    """group: its heading in the help; empty in a command without groups. text: what it is; with more in the long help.
    is_daily: whether the short help has it."""

    def __init__(
        self,
        flag: str,
        group: str,
        text: str,
        more: str = "",
        *,
        name: str = "",
        is_daily: bool = False,
        **attributes: Any,
    ) -> None:
        attributes.setdefault("show_default", attributes.get("default") is not None)
        super().__init__([flag, *([name] if name else [])], help=f"{text} {more}".strip(), **attributes)
        self.group, self.text, self.is_daily = group, text, is_daily

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None or not self.is_daily or ctx.meta.get(_SHOWS_ALL) or not isinstance(ctx.command, Command):
            return record
        return record[0], self.text


def files(metavar: str, *, required: bool = True) -> click.Argument:
    """What a command reads: one or more, by the name `logs` or `reports`."""
    return click.Argument([f"{metavar.strip('[].').lower()}s"], metavar=metavar, nargs=-1, required=required)


def shh_command(
    name: str, *parameters: click.Parameter, takes_runner: bool = False
) -> Callable[[Callable[[Options], None]], click.Command]:
    """A decorator: makes a command of a function of `Options`. Its docstring is the help. takes_runner: whether options
    of Beam may follow."""

    def decorate(function: Callable[[Options], None]) -> click.Command:
        def run(**given: Any) -> None:
            function(Options(**given))

        made = Command(name, callback=run, params=list(parameters), help=function.__doc__)
        made.takes_runner = takes_runner
        return made

    return decorate


class Command(click.Command):
    """A command whose errors name its flags, and whose help has groups if its options do."""

    takes_runner = False

    def __init__(self, *words: Any, **attributes: Any) -> None:
        super().__init__(*words, **attributes)
        if self._has_groups:
            shows: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
            self.params.append(Option("--help-all", ENGINE, "Show all options.", **shows))

    def _options(self) -> list[Option]:
        return [each for each in self.params if isinstance(each, Option)]

    @property
    def _has_groups(self) -> bool:
        return len(self.params) > _MOST_WITHOUT_GROUPS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words that are Beam's go to ``ctx.obj``."""
        ours: dict[str, int] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option):
                ours |= dict.fromkeys(each.opts, 0 if each.is_flag else each.nargs)
        ctx.obj = []
        if self.takes_runner and any(each.startswith("--") and each.partition("=")[0] not in ours for each in args):
            from dp_transforms.beam.runner_options import split_words  # loads Beam

            args, ctx.obj = split_words(args, ours)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise UserError(in_flags(error, self.params)) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = self._options()
        if not self._has_groups:
            super().format_options(ctx, formatter)
            return
        shown = [each for each in options if each.is_daily or ctx.meta.get(_SHOWS_ALL)]
        for group in (INPUT, BUDGET, OUTPUT, ENGINE):
            records = [each.get_help_record(ctx) for each in shown if each.group == group]
            if records:
                with formatter.section(group):
                    formatter.write_dl([record for record in records if record])
        if len(shown) < len(options):
            formatter.write(f"\nAll {len(options)} options: {ctx.command_path} --help-all\n")


def _show_all(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def beam_words() -> list[str]:
    """The words of the command line that are Beam's. Raises UserError where they name no runner."""
    words: list[str] = click.get_current_context().obj
    if words and not any(word.partition("=")[0] == "--runner" for word in words):
        raise UserError(
            f"{words[0].partition('=')[0]} is an option of Beam, and needs --runner. Give it, or leave it out."
        )
    return words


def flag(name: str) -> str:
    """Of the command that runs, by the name of its parameter."""
    named = {each.name: each.opts[0] for each in click.get_current_context().command.params}
    return named[name]


def in_flags(error: InputError, parameters: Iterable[click.Parameter]) -> str:
    """What it says, with the flags of a command in the place of the names of its parameters."""
    named = {str(each.name): each.opts[0] for each in parameters if isinstance(each, click.Option)}

    def flag_of(word: re.Match[str]) -> str:
        name = word[0].removesuffix("_seconds")
        return next((named[each] for each in (name, f"{name}_field", f"{name}_file") if each in named), word[0])

    remedy = re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", flag_of, error.remedy)  # plain words are not meant there
    return str(InputError(re.sub(r"\w+", flag_of, error.parameter), error.problem, remedy))


def check_together(
    options: Options, names: str, *, needs: str = "", excludes: str = "", why: str = "", remedy: str = ""
) -> None:
    """A rule between options, each list of names with blanks. Raises InputError if one of names is given, but none of
    needs, or one of excludes."""
    for name in (each for each in names.split() if is_given(options, each)):
        reason = f": {why}" if why else ""
        if needs and not any(is_given(options, other) for other in needs.split()):
            wanted = " or ".join(map(flag, needs.split()))
            raise InputError(name, f"needs {wanted}{reason}.", remedy or f"Give it too, or leave {flag(name)} out.")
        for other in (each for each in excludes.split() if is_given(options, each)):
            remedy = remedy or "Leave one of them out."
            raise InputError(name, f"cannot be used with {flag(other)}{reason}.", remedy)


def is_given(options: Options, name: str) -> bool:
    return getattr(options, name) not in (None, False, ())


class NothingFoundError(UserError):
    """There is nothing of what was asked for: nothing was written, and a replay has spent nothing."""

    exit_code = 4


class LogError(UserError):
    """The log alone is why it failed, with any noise. Of a run on this machine nothing was published then, and nobody
    has seen what was drawn."""


@contextlib.contextmanager
def user_errors(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Errors of these kinds become UserErrors. Only for messages that were written to be shown."""
    try:
        yield
    except kinds as error:
        if isinstance(error, InputError) and not prefix:
            raise
        raise UserError(f"{prefix}{error}") from None


class ParsedText(click.ParamType):
    """What a function makes of the text of an option, or of its default; its ValueError says what is wrong with it."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _duration(text: str) -> int:
    """``90s``, ``15m``, ``1h``, ``1d``, ``1w``: whole seconds, at least 1."""
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError(f"{text!r} is not a duration. Use a number and s, m, h, d or w, such as 1h.")
    return seconds


def time_zone(name: str | None) -> datetime.tzinfo:
    """name: of the IANA time zone database, such as Europe/Berlin; None: UTC."""
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name or "UTC")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        from dp_transforms.logs.time_formats import zone_remedy

        raise InputError(
            "time_zone", f"must be a time zone that this machine knows, got {name!r}.", zone_remedy(str(name))
        ) from None


DURATION = ParsedText("duration", _duration)
DURATION_OR_ZERO = ParsedText("duration", parse_duration)
UTC_TIME = ParsedText("time", parse_utc)  # whole seconds since 1970 UTC
