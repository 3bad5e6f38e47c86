"""The options by which a command takes one part of a run, ``--state`` and ``--until``, and what goes with them; and
those that say where a run is accounted for."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping

from dp_transforms.cli.options import ADVANCED, BUDGET, MAKE_A_KEY, UTC_TIME, Rule, opt
from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import open_regular, remove_dead_drafts


@dataclasses.dataclass(frozen=True)
class StateOptions:
    """What a command says of its part.

    path: of the state. noise_key_file: the key of the run. user_field, item_field, stream_field: of what is read.
    output: what is published, as it is named in the state. until_seconds: of ``--until``; None for the end of the plan.
    run_id: of ``--run-id``, or what the run is called if it is new; None: a fresh one then. is_named: whether it is of
    ``--run-id``. population: of ``--population``; None without a ledger.
    """

    path: str
    noise_key_file: str
    user_field: str
    item_field: str
    output: str
    until_seconds: int | None = None
    run_id: str | None = None
    is_named: bool = True
    population: str | None = None
    stream_field: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartOptions:
    """Which part of a run is taken."""

    state: str | None = opt(
        ADVANCED,
        "Take the range in parts, one command after the other, for one budget: a private file with what one "
        "part hands to the next, made by the first one (mode 0600). Replays and streams may follow each other. The "
        "budget options and the key are the same in all parts. With --mode looks users spend at their own pace, "
        "as in a stream.",
        metavar="FILE",
    )
    until: int | None = opt(
        ADVANCED,
        "With --state: this part ends here, at the end of a window; it begins where the part before it ended. "
        "Default: --end.",
        type=UTC_TIME,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountOptions:
    """Where a run is accounted for."""

    ledger: str | None = opt(
        BUDGET,
        "Keep account over all runs: a run that does not fit is refused before its events are looked at, and"
        " the budget of one that does is reserved before anything is drawn. A file, made by the first run, or"
        " postgresql://host/database.",
        brief="Keep account over all runs; with --population.",
        metavar="FILE|URL",
    )
    population: str | None = opt(
        BUDGET, "With --ledger: a name for all streams that share users with this one.", metavar="NAME"
    )
    max_epsilon: str | None = opt(
        BUDGET,
        "With --ledger: what users of this population may ever lose in all runs together. Set once.",
        metavar="FLOAT",
    )
    max_delta: str | None = opt(BUDGET, "With --ledger: failure probability of that. Set once.", metavar="FLOAT")


STATE_RULES = (
    Rule("--until", needs="--state", remedy="Give --state FILE, or declare another range with --end."),
    Rule(
        "--state",
        needs="--noise-key-file",
        why="all parts of a run have one key, since users are recognised by it",
        remedy=MAKE_A_KEY,
    ),
    Rule("--population, --max-epsilon, --max-delta", needs="--ledger"),
    Rule(
        "--ledger",
        needs="--population",
        why="a name for all streams that share users with this one",
        remedy="Give it too, for example --population news.",
    ),
)


def check_state_file(state: str, others: Mapping[str, str | None]) -> None:
    """Raises UserError for a ``--state`` that cannot be one. others: further files of the command, by their options."""
    if "://" in state:
        raise UserError(
            "--state must be a path on a disk, got a URL. One process at a time may work on a state, and stores have no"
            " lock that ends with its process. Logs, plan, report and dead letters may be URLs."
        )
    if os.path.islink(state):
        raise UserError(f"--state {state} is a link, not a regular file. Give the path of the file itself.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(state))):
        raise UserError(
            f"--state {state} cannot be written: its folder does not exist. Create it, or name another one."
        )
    remove_dead_drafts(pathlib.Path(state))
    try:
        open_regular(state).close()
    except FileNotFoundError:
        pass  # the first part makes it
    except OSError as error:
        raise UserError(f"--state {state} cannot be read: {error.strerror}. Check the path.") from None
    for option, path in others.items():
        if path is not None and os.path.realpath(path) == os.path.realpath(state):
            raise UserError(f"--state and {option} name the same file. Name two different ones.")
