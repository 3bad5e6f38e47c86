"""``shh doctor LOG...``: a glance at a log without a run. Also what ``shh replay LOG`` does that has no budget yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import click
from rich.console import Console

from dp_transforms.checks import without_secrets
from dp_transforms.cli.field_roles import ITEM, TIME, USER
from dp_transforms.cli.glance_words import (
    FOR_THE_OPERATOR,
    choice_lines,
    fault_lines,
    field_words,
    log_lines,
    proposal_of,
    range_lines,
    replay_command,
    wrapped,
)
from dp_transforms.cli.log_glance import LogGlance, glance_at
from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.options import INPUT, Option, Options, files, shh_command
from dp_transforms.cli.shared_options import READING, fields_of
from dp_transforms.errors import UserError
from dp_transforms.logs.estimate import sample_log
from dp_transforms.views.report_words import is_ascii_only

_PROPOSED = "Default: one is proposed."


@shh_command(
    "doctor",
    files("LOG..."),
    Option("--user-field", INPUT, "Look at this field as the user.", _PROPOSED, metavar="NAME"),
    Option("--item-field", INPUT, "Look at this field as the item.", _PROPOSED, metavar="NAME"),
    Option("--time-field", INPUT, "Look at this field as the time.", _PROPOSED, metavar="NAME"),
    *READING,
)
def command(options: Options) -> None:
    """Look at a log without a run: which fields and times it has, what is damaged, and how to replay it.

    LOG is what `shh replay` takes. Some rows at the beginning and the end of some
    files are read, however large they are. What is printed is for the operator alone: no privacy covers it.

    \b
    shh doctor clicks.csv
    """
    roles = {USER: options.user_field, ITEM: options.item_field, TIME: options.time_field}
    given = {role: name for role, name in roles.items() if name is not None}
    glance = show_glance(options.logs, given, options, click.echo, Console())
    if not glance.is_complete or glance.sample.faults:
        raise UserError("the log cannot be replayed as it is; what is in the way is said above.")


def show_glance(
    logs: Sequence[str],
    given: Mapping[str, str],
    options: Options,
    say: Callable[[str], None],
    console: Console,
    more_items: Sequence[str] = (),
) -> LogGlance:
    """Says what a log is like, and the command that replays it. given: the fields that the operator named, by their
    roles. options: how it is read. console: where it is said. more_items: further fields of the item.
    Raises UserError if there is no log."""
    ascii_only = is_ascii_only(console)
    fields = fields_of(options, are_named=False)
    try:
        with operator_console().status("looking at the log"):
            sample = sample_log(logs, fields.csv_separator)
    except OSError as error:
        raise UserError(f"the log cannot be read: {error.strerror}.") from None
    if not sample.samples and len(sample.faults) == 1:
        raise UserError(str(sample.faults[0]))
    glance = glance_at(sample, given, fields.time_reading)
    blocks = [[FOR_THE_OPERATOR], list(log_lines(glance, ascii_only))]
    if glance.has_rows:
        blocks.append(["Read it as:", *choice_lines(glance, ascii_only)])
    if faults := fault_lines(glance, ascii_only):
        blocks.append(["Look at this:", *(f"  - {fault}" for fault in faults)])
    proposal = proposal_of(glance)
    if glance.is_complete and proposal is not None:
        blocks.append(range_lines(glance, proposal, ascii_only))
        words = field_words(glance)
        if more_items and "--item-field" not in words:
            words += ["--item-field", glance.chosen[ITEM]]
        words += [word for name in more_items for word in ("--item-field", name)]
        blocks.append(
            [
                "For a private report, with a range of your own:",
                f"  {replay_command(logs, words, proposal)}",
                "What it would find: shh plan, with its options of a budget.",
            ]
        )
    width = console.width if console.is_terminal else None
    say("\n\n".join("\n".join(wrapped(without_secrets(line), width) for line in block) for block in blocks))
    return glance
