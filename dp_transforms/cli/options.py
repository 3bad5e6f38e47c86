"""What the options of a command are made of: a frozen record that they fill, and a table of rules between them.

A field of the record is an option (`opt`), an argument (`argument`), or a record that several commands share
(`nested`); `filled_by` makes the command. Commands have dozens of options, so they stand in groups: ``--help`` shows
those of every day, ``--help-all`` all, and the rules. Each `Rule` is checked before the command runs, and is a row of
docs/commands.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from dp_transforms.errors import InputError, UserError
from dp_transforms.plan.window_schedule import parse_duration, parse_utc

R = TypeVar("R")
INPUT, BUDGET, OUTPUT, ENGINE, ADVANCED = "Input", "Budget", "Output", "Engine", "Advanced"
GROUPS = (INPUT, BUDGET, OUTPUT, ENGINE, ADVANCED)
_SHOWS_ALL, _MAKES, _NESTED = "shh.help_all", "shh.makes", "shh.nested"
MAKE_A_KEY = "Make one with: (umask 077; head -c 32 /dev/urandom > noise.key)"
_MOST_WITHOUT_GROUPS = 15
UNREADABLE = 2  # exit code of a command line that cannot be read, or is not complete
# What the annotation of a field says of its option.
_OF_ANNOTATION: dict[str, dict[str, Any]] = {
    "int": {"type": int},
    "float": {"type": float},
    "tuple[int, int]": {"type": int, "nargs": 2},
    "tuple[str, ...]": {"multiple": True},
}


class GroupedOption(click.Option):
    """group: one of `GROUPS`, or empty in a command without groups. brief: what the short help says of it; without,
    only the long one has it. needed: what stands behind an option that a run needs; click cannot know, since a plan or
    another input may stand for it. seen_as: what a rule takes its value for."""

    def __init__(
        self, *names: Any, group: str, brief: str = "", needed: str = "", seen_as: Callable[[Any], object], **more: Any
    ) -> None:
        super().__init__(*names, **more)
        self.group, self.brief, self.needed, self.seen_as = group, brief, needed, seen_as

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        needed = self.needed
        if self.brief and isinstance(ctx.command, GroupedCommand) and not ctx.meta.get(_SHOWS_ALL):
            kind = str(self.name).rpartition("_")[2].upper() if isinstance(self.type, click.Choice) else None
            takes = "" if self.is_flag else f" {self.metavar or kind or self.type.name.upper()}"
            record: tuple[str, str] | None = self.opts[0] + takes, self.brief
            needed = "required" if self.required else needed
        else:
            record = super().get_help_record(ctx)
        return (record[0], f"{record[1]} [{needed}]") if record and needed else record


def flag(name: str) -> str:
    """``hits_per_user`` -> ``--hits-per-user``."""
    return "--" + name.replace("_", "-")


def flags(names: Iterable[str]) -> str:
    """Of several names, as a `Rule` takes them."""
    return ", ".join(map(flag, names))


def opt(
    group: str,
    help_text: str,
    name: str | None = None,
    *,
    default: Any = None,
    shows_default: bool = True,
    seen_as: Callable[[Any], object] = str,
    **more: Any,
) -> Any:
    """A field of a record that an option fills. Its annotation says whether it is a flag or a number; without a default
    it may be None. name: of the option, if it is not the field's. more: of `GroupedOption`.
    """

    def make(field: dataclasses.Field[Any]) -> click.Parameter:
        attributes = {**_OF_ANNOTATION.get(str(field.type).removesuffix(" | None"), {}), **more, "help": help_text}
        if default is not None:
            attributes.update(default=default, show_default=shows_default and default not in (False, ()))
        return GroupedOption([name or flag(field.name), field.name], group=group, seen_as=seen_as, **attributes)

    kind = more.get("type")
    value = kind.convert(default, None, None) if isinstance(kind, ParsedText) else default
    return dataclasses.field(default=value, metadata={_MAKES: make})


def switch(group: str, help_text: str, name: str | None = None, **more: Any) -> Any:
    """A field that is true where its option is given."""
    return opt(group, help_text, name, default=False, is_flag=True, **more)


def argument(metavar: str, *, nargs: int = -1, required: bool = True) -> Any:
    """A field of a record that an argument fills."""

    def make(field: dataclasses.Field[Any]) -> click.Parameter:
        return click.Argument([field.name], metavar=metavar, nargs=nargs, required=required)

    return dataclasses.field(default=() if nargs < 0 else "", metadata={_MAKES: make})


def nested(record: type[R]) -> R:
    """A field that is such a record, filled by the same command line."""
    made: R = dataclasses.field(default_factory=record, metadata={_NESTED: record})
    return made


def parameters_of(record: type) -> list[click.Parameter]:
    """Of its fields and nested records, in their order."""
    made: list[click.Parameter] = []
    for field in dataclasses.fields(record):
        if _NESTED in field.metadata:
            made += parameters_of(field.metadata[_NESTED])
        elif _MAKES in field.metadata:
            made.append(field.metadata[_MAKES](field))
    return made


def fill(record: type[R], values: Mapping[str, Any]) -> R:
    """The record with these values, by the names of fields."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        if _NESTED in field.metadata:
            found[field.name] = fill(field.metadata[_NESTED], values)
        elif field.name in values:
            found[field.name] = values[field.name]
    return record(**found)


def names_of(record: type) -> tuple[str, ...]:
    """The names of all fields that options fill."""
    return tuple(str(each.name) for each in parameters_of(record))


def filled_by(
    record: type[R], name: str, rules: Sequence[Rule] = (), *, has_runner: bool = False
) -> Callable[[Callable[[R], None]], click.Command]:
    """A decorator: makes a command of a function of such a record. Its docstring is the help. has_runner: whether it
    takes Beam's options too."""
    parameters = parameters_of(record)

    def decorate(function: Callable[[R], None]) -> click.Command:
        def run(**values: Any) -> None:
            context = click.get_current_context()
            for rule, message in broken_rules(context):  # the first one
                raise click.UsageError(message, ctx=context) if rule.is_usage else UserError(message)
            function(fill(record, values))

        kind = (
            RunnerCommand if has_runner else GroupedCommand if len(parameters) > _MOST_WITHOUT_GROUPS else RuledCommand
        )
        return kind(name, callback=run, params=parameters, help=function.__doc__, rules=rules)

    return decorate


def given_names() -> set[str]:
    """The parameters of the command that the operator gave, on the command line or in a file."""
    context = click.get_current_context()
    return {name for name in context.params if _is_given(context, name)}


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


@dataclasses.dataclass(frozen=True)
class Rule:
    """What holds for some options of a command, in words of the command line.

    options: one or several, with commas: the rule holds for each. needs: one of these must be given too; alternatives
    with bars. excludes: none of these may be. Each may name a value: ``--clock event``. unless: with this one, the rule
    does not hold. why, remedy: parts of a sentence, and a sentence. is_usage: exit code 2, not 1.
    """

    options: str
    needs: str = ""
    excludes: str = ""
    unless: str = ""
    why: str = ""
    remedy: str = ""
    is_usage: bool = False

    def words(self, option: str, needs_one: str = "", but: str = "") -> str:
        """The sentence for an option that breaks it. needs_one, but: what it needs, or is given beside it."""
        reason = f": {self.why}" if self.why else ""
        if but:
            return f"{option} cannot be used with {but}{reason}. {self.remedy or 'Leave one of them out.'}"
        return f"{option} needs {needs_one}{reason}. {self.remedy or f'Give it too, or leave {option} out.'}"

    def broken(self, has: Callable[[str], bool]) -> str | None:
        """What is wrong, of a command line that has what ``has`` says."""
        if self.unless and has(self.unless):
            return None
        for option in filter(has, _each(self.options)):
            if self.needs and not any(map(has, _each(self.needs))):
                return self.words(option, needs_one=" or ".join(_each(self.needs)))
            for other in _each(self.excludes):
                if has(other):
                    return self.words(option, but=other)
        return None

    def among(self, parameters: Sequence[click.Parameter]) -> Rule:
        """The rule for a command that has these, and perhaps not all options and values that it names."""
        types = {each.opts[0]: each.type for each in parameters}

        def known(words: str) -> str:
            return ", ".join(word for word in _each(words) if _is_known(word, types))

        return dataclasses.replace(
            self, options=known(self.options), needs=known(self.needs), excludes=known(self.excludes)
        )

    @property
    def in_short(self) -> str:
        """For help and documents, behind the options."""
        parts = (("needs", " or ".join(_each(self.needs))), ("not with", ", ".join(_each(self.excludes))))
        text = "; ".join(f"{word} {others}" for word, others in parts if others)
        return f"{text}, unless {self.unless}" if self.unless else text


def _each(words: str) -> list[str]:
    return [word.strip() for word in words.replace("|", ",").split(",") if word.strip()]


def _is_known(word: str, types: Mapping[str, click.ParamType]) -> bool:
    name, _, value = word.partition(" ")
    kind = types.get(name)
    return kind is not None and not (value and isinstance(kind, click.Choice) and value not in kind.choices)


def broken_rules(context: click.Context) -> Iterator[tuple[Rule, str]]:
    """The rules of the command that its command line breaks, in their order, and what is wrong."""
    assert isinstance(context.command, RuledCommand)
    options = {each.opts[0]: each for each in context.command.params if isinstance(each, GroupedOption)}

    def has(word: str) -> bool:
        name, _, value = word.partition(" ")
        given, option = context.params[str(options[name].name)], options[name]
        if value:
            return option.seen_as(given) == value
        return _is_given(context, str(option.name)) and given is not None and given is not False

    for rule in context.command.rules:
        if message := rule.broken(has):
            yield rule, message


class RuledCommand(click.Command):
    """A command with rules between its options."""

    def __init__(self, *words: Any, rules: Sequence[Rule] = (), **attributes: Any) -> None:
        super().__init__(*words, **attributes)
        self.rules = [rule for each in rules if (rule := each.among(self.params)).options]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise UserError(in_flags(error, self.params)) from None


class GroupedCommand(RuledCommand):
    """A command with options in groups, and ``--help-all``."""

    def __init__(self, *words: Any, **attributes: Any) -> None:
        super().__init__(*words, **attributes)
        shows: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
        self.params.append(
            GroupedOption(["--help-all"], group=ADVANCED, help="Show all options.", seen_as=str, **shows)
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.params if isinstance(each, GroupedOption)]
        shown = [each for each in options if each.brief or ctx.meta.get(_SHOWS_ALL)]
        for group in GROUPS:
            of_group = [each for each in shown if each.group == group]
            of_group.sort(key=lambda each: not (each.needed or each.required))
            if of_group:
                with formatter.section(group):
                    formatter.write_dl([record for each in of_group if (record := each.get_help_record(ctx))])
        if len(shown) < len(options):
            formatter.write(f"\nAll {len(options)} options: {ctx.command_path} --help-all\n")
        elif self.rules:
            with formatter.section("Rules"):
                for rule in self.rules:
                    formatter.write_text(f"{rule.options}: {rule.in_short}")


class RunnerCommand(GroupedCommand):
    """A command that also takes Beam's options, such as ``--runner``: its function finds them by `beam_words`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours: dict[str, int] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option):
                ours |= dict.fromkeys(each.opts, 0 if each.is_flag else each.nargs)
        ctx.obj = []
        if any(word.startswith("--") and word.partition("=")[0] not in ours for word in args):
            from dp_transforms.beam.runner_options import split_words  # loads Beam

            args, ctx.obj = split_words(args, ours)
        return super().parse_args(ctx, args)


def beam_words() -> list[str]:
    """The words of the command line that are Beam's. Raises UserError where they name no runner."""
    words: list[str] = click.get_current_context().obj
    if words and not any(word.partition("=")[0] == "--runner" for word in words):
        raise UserError(
            f"{words[0].partition('=')[0]} is an option of Beam, and needs --runner. Give it, or leave it out."
        )
    return words


def _show_all(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def in_flags(error: InputError, parameters: Iterable[click.Parameter]) -> str:
    """What it says, with the flags of a command in the place of the names of its parameters."""
    named = {str(each.name): each.opts[0] for each in parameters if isinstance(each, click.Option)}

    def flag_of(word: re.Match[str]) -> str:
        name = word[0].removesuffix("_seconds")
        return next((named[each] for each in (name, f"{name}_field", f"{name}_file") if each in named), word[0])

    remedy = re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", flag_of, error.remedy)  # plain words are not meant there
    return str(InputError(re.sub(r"\w+", flag_of, error.parameter), error.problem, remedy))


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


def _time_zone(name: str) -> datetime.tzinfo:
    """name: of the IANA time zone database, such as Europe/Berlin."""
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        from dp_transforms.logs.time_formats import zone_remedy

        raise ValueError(f"{name!r} is not a time zone that this machine knows. {zone_remedy(name)}") from None


DURATION = ParsedText("duration", _duration)
DURATION_OR_ZERO = ParsedText("duration", parse_duration)
UTC_TIME = ParsedText("time", parse_utc)  # whole seconds since 1970 UTC
TIME_ZONE = ParsedText("zone", _time_zone)
