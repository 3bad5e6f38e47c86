"""The subcommands of ``shh``: runs the module of each, and turns expected errors into one line.

Also ``--config FILE``, options of commands in a TOML file, one table for each command, where the command line wins: a
``shh.toml`` in the working folder is found. And what becomes of errors of standard output (a full disk, a closed pipe).
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import importlib
import logging
import os
import pathlib
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TextIO, cast

import click

from dp_transforms.checks import nearest, on_one_line
from dp_transforms.cli import exit_signals, operator_log
from dp_transforms.errors import UserError, reason_of_machine

# Each is in a module of its name. What it does is said here too, so that ``shh --help`` imports none of them.
_COMMANDS = {
    "audit": "Check a plan before it is used: the most that its mechanism can reveal.",
    "doctor": "Look at a log without a run: fields, times, damage, and how to replay it.",
    "explain": "Say in plain words what a report or a plan promises, and what not.",
    "ledger": "Show what users have lost and what is left; reserve budgets, and end runs.",
    "plan": "Show what a budget buys: noise, threshold, and what can be found.",
    "replay": "Replay a log: which items were held by many users in each window.",
    "show": "Print a report file: its guarantee, and which items were heavy when.",
    "simulate": "Write a simulated event log to try things on.",
    "stream": "Watch a live stream: which items are held by many users right now.",
}
_WELCOME = """\
shh says which items many users hold, window by window, under differential privacy for each user.

You have a log (CSV, JSON lines, Parquet or Avro) of who had what when:
  shh doctor clicks.csv                     looks at it: which fields and times it has, what is damaged
  shh replay clicks.csv                     looks at it too, and prints the command for a private report

You have none yet:
  shh simulate --output clicks.parquet      makes one, and prints the command to replay it

You have a report:
  shh show report.avro --html report.html   makes a page of it for the browser
  shh explain report.avro                   says what it promises, and what not

All commands: shh --help. Options of one: shh replay --help, and all of them: shh replay --help-all."""
_FOUND_CONFIG = "shh.toml"  # in the working folder
_MOST_BYTES = 1 << 16
_MOST_DOTS = 100  # of a line: the parser takes the square of the parts of a key, in time and memory
_COMMAND_LINE_ONLY = ("help", "help-all", "verbose")


class _LazyGroup(click.Group):
    """Imports a subcommand only when it is used: ``shh plan`` must not wait for Beam."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"dp_transforms.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = [] if args[0] in _COMMANDS else difflib.get_close_matches(args[0], _COMMANDS, n=1)
        if close and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Do you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would take any closed connection for a closed standard output, and end without a word.
            raise ConnectionError().with_traceback(error.__traceback__) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="shifting-heavy-hitters", prog_name="shh")
@click.option(
    "--config",
    metavar="FILE.toml",
    help="Options of commands in a TOML file, a table for each command; the command line wins (docs/commands.md). "
    "[default: ./shh.toml, if there is one]",
)
@click.pass_context
def shh(context: click.Context, config: str | None) -> None:
    """Private shifting heavy hitters: which items are held by many users right now, window by window, under
    differential privacy for each user over all windows of the declared range."""
    name = context.invoked_subcommand
    if name is None:
        click.echo(_WELCOME)
        return
    is_found = config is None and name in _COMMANDS and os.path.lexists(_FOUND_CONFIG)
    path = _FOUND_CONFIG if is_found else config
    if path is None or context.resilient_parsing:
        return
    table, command = read_config(path, _COMMANDS).get(name), shh.get_command(context, name)
    if table is not None and command is not None:
        context.default_map = {name: defaults_of(path, command, table)}
        if is_found:
            operator_log.tell(f"{name}: options of ./{path} count, but for those of the command line.")


@operator_log.veiled_standard_error()
def run(words: Sequence[str]) -> None:
    """Runs ``shh``. Returns when it is done; else raises SystemExit, with the codes of `cli.main`."""
    words = list(words)
    operator_log.begin()
    _quiet_logs("--verbose" in words)
    try:
        with _kept_standard_output() as output:
            shh.main(args=words, prog_name="shh", standalone_mode=False)
    except UserError as error:
        _fail(on_one_line(str(error)), error.exit_code)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and (place := _place_of(error)):
            click.echo(place, err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("stopped.", exit_signals.stopped_with or exit_signals.INTERRUPTED)
    except Exception as error:  # a fault of ours, or of a library: its message may hold a cell of the data
        if "--verbose" in words:
            traceback.print_exc()
            sys.exit(1)
        _fail(_unexpected(error), 1)
    if output.error is None:
        return
    if isinstance(output.error, BrokenPipeError):  # `shh show ... | head`: who closes a pipe knows
        sys.exit(0 if operator_log.is_done() else 1)
    problem = f"cannot write to standard output: {output.error.strerror}."
    if not operator_log.is_done():
        _fail(problem, 1)
    operator_log.tell(f"shh: warning: {problem} What was asked for is written.")


def _place_of(error: click.NoSuchOption) -> str:
    """Where an option belongs that its command does not have; nothing for one that nobody knows."""
    option, command = error.option_name, None if error.ctx is None else error.ctx.info_name
    if option == "--config" and command in _COMMANDS:
        return f"It belongs before the command: shh --config ... {command} ..."
    if command == "stream":
        replay: click.Command = importlib.import_module("dp_transforms.cli.replay").command
        if any(option in each.opts for each in replay.params):
            return f"It is for replays: shh replay {option} ..."
    return ""


def _fail(message: str, code: int) -> NoReturn:
    """Ends the process with one line."""
    operator_log.tell(f"shh: {message}")
    sys.exit(code)


def _unexpected(error: Exception) -> str:
    if reason := reason_of_machine("".join(traceback.format_exception(error))):
        return f"{reason}."
    paths = [(pathlib.PurePath(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [f"{path.parent.name}/{path.name}:{line}" for path, line in paths if "dp_transforms" in path.parts]
    return (
        f"failed with {type(error).__name__} at {ours[-1]}. This should not happen, please report it. With --verbose"
        " replay and stream show the whole traceback, which may contain cells of the log."
    )


def _quiet_logs(verbose: bool) -> None:
    """Beam logs whole tracebacks, and messages of other code in them may contain a cell of the data."""
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, force=True)
    if not verbose:
        warnings.simplefilter("ignore")


class _Output:
    """Standard output. What it does not take is dropped, for good: a run goes on whoever can be told. error: the first
    one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._kept():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._kept():
            self._stream.flush()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # also for Python, which flushes once more at its end


@contextlib.contextmanager
def _kept_standard_output() -> Iterator[_Output]:
    """While the block runs, no error of `sys.stdout` is raised; it is flushed at the end of the block."""
    before = sys.stdout
    with open(os.devnull, "w") if before is None else contextlib.nullcontext(before) as stream:
        output = _Output(stream)
        sys.stdout = cast(TextIO, output)
        try:
            yield output
            output.flush()
        finally:
            sys.stdout = before


def read_config(path: str, commands: Collection[str]) -> dict[str, Any]:
    """The tables of the file, by command. Raises UserError for a file that cannot be read and for unknown tables."""
    import tomllib  # few commands have such a file

    from dp_transforms.stores.local_files import read_regular

    try:
        data = read_regular(path, _MOST_BYTES)
        if len(data) > _MOST_BYTES:
            raise UserError(f"{path} has more than 64 KB, so it is not a list of options.")
        if max((line.count(b".") for line in data.splitlines()), default=0) > _MOST_DOTS:
            raise UserError(f"{path} has a line with more than {_MOST_DOTS} dots, so it is not a list of options.")
        tables = tomllib.loads(data.decode())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Name a regular file.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {on_one_line(str(error))}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text. Write it in TOML.") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists
        raise UserError(f"{path} has a value that is too large. Write numbers and texts in it.") from None
    for name, table in tables.items():
        if name not in commands:
            raise UserError(f"{path}: there is no command {_shown(name)}{nearest(name, commands)}")
        if not isinstance(table, dict):
            raise UserError(
                f"{path}: {_shown(name)} must be a table of options: [{name}], and below it a line for each."
            )
    return tables


def defaults_of(path: str, command: click.Command, table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a command as click takes it: by the names of parameters, as texts of a command line.

    Raises UserError for a key that is no option of the command, naming the nearest, and for a value of another kind.
    """
    options = {
        each.opts[0].removeprefix("--"): each
        for each in command.params
        if isinstance(each, click.Option) and each.opts[0].removeprefix("--") not in _COMMAND_LINE_ONLY
    }
    inner = command.commands if isinstance(command, click.Group) else {}
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        where = f"{path}: [{command.name}] {_shown(key)}"
        if key in inner and isinstance(value, dict):
            found[key] = defaults_of(path, inner[key], value)
        elif name not in options:
            raise UserError(f"{where} is no option that a file may set{nearest(name, [*options, *inner])}")
        else:
            found[str(options[name].name)] = _value(where, options[name], value)
    return found


def _value(where: str, option: click.Option, value: Any) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise UserError(f"{where} must be true or false.")
        return value
    if option.multiple:  # or one of them
        return [_text(where, each) for each in (value if isinstance(value, list) else [value])]
    if option.nargs != 1:
        if not (isinstance(value, list) and len(value) == option.nargs):
            raise UserError(f"{where} must be a list of {option.nargs} values.")
        return [_text(where, each) for each in value]
    return _text(where, value)


def _text(where: str, value: Any) -> str:
    """As it would stand on the command line, so that it is read by the same rules."""
    if isinstance(value, str):
        return value
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{where} must be a text or a number, as on the command line.")
    try:
        return repr(value)
    except ValueError:  # a hexadecimal number of thousands of digits
        raise UserError(f"{where} is too large a number.") from None


def _shown(name: str) -> str:
    return repr(on_one_line(name, most=80))
