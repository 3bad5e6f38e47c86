"""The subcommands of ``shh``: runs the module of each, and turns expected errors into one line."""

from __future__ import annotations

import importlib
import logging
import pathlib
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from dp_transforms.checks import on_one_line
from dp_transforms.cli import exit_signals, operator_log
from dp_transforms.errors import UserError, reason_of_machine

# Each is in a module of its name. What it does is said here too, so that ``shh --help`` imports none of them.
_COMMANDS = {
    "audit": "Check a plan before it is used: the most that its mechanism can reveal.",
    "doctor": "Look at a log without a run: fields, times, damage, and how to replay it.",
    "explain": "Say in plain words what a report or a plan promises, and what not.",
    "ledger": "Show what users have lost in all runs, and what is left; end a run.",
    "plan": "Show what a budget buys: noise, threshold, and what can be found.",
    "replay": "Replay a log: which items were held by many users in each window.",
    "show": "Print a report file: its guarantee, and which items were heavy when.",
    "simulate": "Write a simulated event log to try things on.",
    "stream": "Watch a live stream: which items are held by many users right now.",
}

_WRITES = {"--output", "--html"}  # with them a command does more than to say something


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

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would take any closed connection for a closed standard output, and end without a word.
            raise ConnectionError().with_traceback(error.__traceback__) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shifting-heavy-hitters", prog_name="shh")
def shh() -> None:
    """Private shifting heavy hitters: which items are held by many users right now, window by window, under
    differential privacy for each user over all windows of the declared range.

    Begin with `shh doctor LOG`, which says how to replay a log; without one with `shh simulate`."""


def run(words: Sequence[str]) -> None:
    """Runs ``shh``. Returns when it is done; else raises SystemExit, with the codes of `cli.main`."""
    words, is_verbose = list(words), "--verbose" in words
    # Beam logs whole tracebacks, and messages of other code in them may contain a cell of the data.
    logging.basicConfig(level=logging.INFO if is_verbose else logging.CRITICAL, force=True)
    if not is_verbose:
        warnings.simplefilter("ignore")
    with operator_log.kept_streams() as output:
        try:
            shh.main(args=words, prog_name="shh", standalone_mode=False)
            output.flush()
        except UserError as error:
            _fail(on_one_line(str(error)), error.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            _fail("stopped.", exit_signals.stopped_with or 130)
        except Exception as error:  # a fault of ours, or of a library: its message may hold a cell of the data
            if is_verbose:
                traceback.print_exc()
                sys.exit(1)
            _fail(_unexpected(error), 1)
        # What is written stays so, whoever could not be told: that is no failure.
        if output.error is not None and _WRITES.isdisjoint(word.partition("=")[0] for word in words):
            if isinstance(output.error, BrokenPipeError):  # `shh show ... | head`: who closes a pipe knows
                sys.exit(1)
            _fail(f"cannot write to standard output: {getattr(output.error, 'strerror', 'it is closed')}.", 1)


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
