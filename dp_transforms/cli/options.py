"""What commands are declared with: options of click that several share, kinds of values, and one class of commands."""

from __future__ import annotations

import contextlib
import copy
import csv
import functools
import io
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from dp_transforms.errors import InputError, UserError
from dp_transforms.plan.window_schedule import parse_duration, parse_utc
from dp_transforms.stores.files import check_output, read_file

if TYPE_CHECKING:
    from apache_beam.utils.secret import GcpSecret

    from dp_transforms.logs import EventFields

NAMED_WITH_KEY = (
    "if both were used again on a log that has changed, both runs would draw the same noise, and the two reports would"
    " show what changed"
)
_SECRET_VERSION = re.compile(r"projects/[^/\s]+/secrets/[^/\s]+/versions/[1-9]\d*")
_MOST_TITLES_BYTES = 16 << 20  # a title takes about 17 times its bytes

Options = types.SimpleNamespace
"""The options of a command line, by their names; None, False or () for what was not given."""


class Command(click.Command):
    """A command of click whose function takes `Options`, and whose errors name its flags. Hidden options are those of
    rare days: ``--help-all`` shows them. takes_runner: whether options of Beam may follow."""

    def __init__(self, *words: Any, takes_runner: bool = False, **attributes: Any) -> None:
        super().__init__(*words, **attributes)
        self.takes_runner = takes_runner
        if any(getattr(each, "hidden", False) for each in self.params):
            shows: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
            self.params = [*self.params, click.Option(["--help-all"], help="Show all options.", **shows)]

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
        assert self.callback is not None
        try:
            return ctx.invoke(self.callback, Options(**ctx.params))
        except InputError as error:
            raise UserError(in_flags(error, self.params)) from None


class Program(Command):
    """One of `pipelines`, which are submitted to Beam. Its options may have underscores too, as the parameters of a
    flex template have."""

    def __init__(self, *words: Any, **attributes: Any) -> None:
        super().__init__(*words, takes_runner=True, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        hyphens = {name[2:].replace("-", "_"): name[2:] for each in self.params for name in each.opts}
        underscores = re.compile(rf"^--({'|'.join(hyphens)})(?==|$)")
        return super().parse_args(ctx, [underscores.sub(lambda found: f"--{hyphens[found[1]]}", word) for word in args])

    def run(self, words: Sequence[str]) -> None:
        """Waits for the end of the job. Ends the process for what cannot be used; raises what Beam raises for the
        job."""
        try:
            with self.make_context(self.name, list(words)) as context:  # not `main`: no error of Beam is click's
                self.invoke(context)
        except click.exceptions.Exit as end:  # of --help
            sys.exit(end.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except UserError as error:
            sys.exit(f"{self.name}: {error}")


def _show_all(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        whole = copy.deepcopy(ctx.command)
        for each in whole.params:
            each.hidden = False  # type: ignore[attr-defined]
        click.echo(whole.get_help(ctx), color=ctx.color)
        ctx.exit()


def beam_words() -> list[str]:
    """The words of the command line that are Beam's. Raises UserError where a command has some that name no runner."""
    context = click.get_current_context()
    words: list[str] = context.obj
    names = [word.partition("=")[0] for word in words]
    if words and "--runner" not in names and not isinstance(context.command, Program):
        raise UserError(f"{names[0]} is an option of Beam, and needs --runner. Give it, or leave it out.")
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


DURATION = ParsedText("duration", parse_duration)
UTC_TIME = ParsedText("time", parse_utc)  # whole seconds since 1970 UTC

option = functools.partial(click.Option, show_default=True)
rare = functools.partial(option, hidden=True)

READING = (
    option(
        ["--time-format"],
        metavar="FORM",
        help="Of times not in ISO 8601: s, ms or us, for numbers since 1970; or such as %d/%b/%Y:%H:%M:%S %z.",
    ),
    option(
        ["--time-zone"],
        metavar="ZONE",
        help="Of times without a zone, such as Europe/Berlin; and of tables and pages. Default: UTC.",
    ),
    option(["--csv-separator"], metavar="CHARACTER", help="Default: a comma, in .tsv a tab."),
)
FIELDS = (
    option(["--user-field"], default="user", metavar="NAME", help="Field with the user."),
    option(
        ["--item-field"],
        multiple=True,
        metavar="NAME",
        help="Field with the item; several make one label. Default: item.",
    ),
    option(["--time-field"], default="timestamp", metavar="NAME", help="Field with the time."),
    *READING,
)
PLAN_FILE = option(["--plan", "plan_file"], metavar="FILE", help="A file of `shh plan`, or the next five.")
CAPS = "the most that users of a new population may ever lose, e.g. 10 1e-6. Set once."
ACCOUNT = (
    option(["--ledger"], metavar="FILE", help="Keep account over all runs."),
    rare(["--population"], metavar="NAME", help="With --ledger: who the users are, e.g. news."),
    rare(["--caps"], nargs=2, metavar="EPSILON DELTA", help=f"With --ledger: {CAPS}"),
)
STREAM_NAME = rare(["--stream"], default="events", metavar="NAME", help="Name of the stream in reports.")
PUBLIC_ITEMS = rare(["--public-items"], metavar="FILE", help="Public list of all items, never made from the log.")
_KEY = "A secret that all workers share, 32 bytes or more. Needed with --runner."
NOISE_KEY = option(["--noise-key-file"], metavar="FILE", help=_KEY)
OF_PROGRAMS = (
    option(["--plan", "plan_file"], required=True, metavar="FILE|URL", help="What `shh plan --output` wrote."),
    NOISE_KEY,
    option(["--noise-key-secret"], metavar="VERSION", help="projects/P/secrets/S/versions/N, for Dataflow."),
    *FIELDS,
    PUBLIC_ITEMS,
    STREAM_NAME,
)
TITLES = option(["--titles"], metavar="FILE.csv", help="CSV with the columns item and title.")
VERBOSE = rare(["--verbose"], is_flag=True, help="Show Beam's log, which may contain cells.")


def fields_of(options: Options) -> EventFields:
    """How events are read. Raises InputError."""
    from dp_transforms.logs import EventFields  # a plan needs no reader
    from dp_transforms.logs.log_chunk import TIME_UNITS

    form, separator = options.time_format, options.csv_separator
    is_unit = form in TIME_UNITS
    return EventFields(
        user=options.user_field,
        item=options.item_field or "item",
        time=options.time_field,
        time_unit=form if is_unit else None,
        time_format=None if is_unit else form,
        time_zone=options.time_zone,
        csv_separator="\t" if separator in ("tab", "\\t") else separator,
    )


def noise_key_of(options: Options) -> GcpSecret | str | None:
    """Of a program: the secret that workers fetch themselves, the path of a key file, or None. Nothing is fetched here.
    Raises InputError for anything but a fixed version of a secret."""
    check_together(options, "noise_key_secret", excludes="noise_key_file")
    version = options.noise_key_secret
    if version is None:
        path: str | None = options.noise_key_file
        return path
    if not _SECRET_VERSION.fullmatch(version):
        problem = "must be projects/P/secrets/S/versions/N with a number N: a key must not change while a run goes on."
        raise InputError("noise_key_secret", problem)
    from apache_beam import GcpSecret  # a command that needs no Beam must not wait for it

    return GcpSecret(version)


def check_shared(options: Options, names: Iterable[str], is_shared: Callable[[str], bool], places: str) -> None:
    """Of a program on Dataflow. is_shared: of a place that its workers see. Raises UserError for others."""
    wrong = []
    for name in names:
        given = getattr(options, name) or ()
        if not all(map(is_shared, (given,) if isinstance(given, str) else given)):
            wrong.append(flag(name))
    if wrong:
        places += " and --noise-key-secret"
        raise UserError(f"workers of Dataflow share no disk: give {places}, not {', '.join(wrong)}.")


def check_account(options: Options) -> None:
    """Raises InputError."""
    check_together(options, "population caps", needs="ledger")
    remedy = "Give it too, for example --population news."
    check_together(options, "ledger", needs="population", why="a name for all streams that share users", remedy=remedy)


def check_page(path: str | None, *, replaces: bool = False) -> None:
    """Raises, before any work, for a page of --html that could not be written."""
    if path is not None and not path.lower().endswith((".html", ".htm")):
        raise click.UsageError(f"--html must end in .html or .htm, got {path!r}.")
    check_output(path, "--html", replaces=replaces)


def read_titles(path: str | pathlib.Path | None) -> dict[str, str]:
    """Label -> title of a CSV file in UTF-8 whose first line names the columns item and title; others are ignored.

    Of two titles for a label the first counts. None: no titles. Raises UserError, which quotes nothing of the file.
    """
    if path is None:
        return {}
    titles: dict[str, str] = {}
    try:
        data = read_file(path, _MOST_TITLES_BYTES)
        if len(data) > _MOST_TITLES_BYTES:
            raise csv.Error
        for row in csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True):
            if None in row or None in (row["item"], row["title"]):  # too few cells, or too many
                raise csv.Error
            titles.setdefault(row["item"], row["title"].strip())
    except OSError as error:
        raise InputError("titles", f"{path} cannot be read: {error.strerror}.", "Check the path.") from None
    except (UnicodeDecodeError, csv.Error, KeyError):
        columns = "of at most 16 MB, with the columns item and title; titles with commas stand in quotes."
        raise InputError("titles", f"{path} must be CSV in UTF-8 {columns}") from None
    return titles
