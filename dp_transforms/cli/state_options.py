"""The options by which a command takes one part of a run, ``--state`` and ``--until``, and what goes with them; and
those that say where a run is accounted for. What knows the ledger is loaded only where these are given."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from dp_transforms.cli.options import ADVANCED, BUDGET, MAKE_A_KEY, UTC_TIME, adds, flag, option
from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import open_regular

if TYPE_CHECKING:
    from dp_transforms.cli.ledger_account import LedgerAccount


@dataclasses.dataclass(frozen=True)
class StateOptions:
    """What a command says of its part.

    path: of the state. noise_key_file: the key of the run. user_field, item_field: of what is read. output: what is
    published, as it is named in the state. until_seconds: of ``--until``; None for the end of the plan. run_id: of
    ``--run-id``, or what the run is called if it is new; None: a fresh one then. is_named: whether it is of
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


state_options = adds(
    option(
        ADVANCED,
        "--state",
        metavar="FILE",
        help="Take the range in parts, one command after the other, for one budget: a private file with what one "
        "part hands to the next, made by the first one (mode 0600). Replays and streams may follow each other. The "
        "budget options and the key are the same in all parts. With --mode looks users spend at their own pace, "
        "as in a stream.",
    ),
    option(
        ADVANCED,
        "--until",
        type=UTC_TIME,
        help="With --state: this part ends here, at the end of a window; it begins where the part before it ended. "
        "Default: --end.",
    ),
)


def check_state_options(options: dict[str, Any]) -> None:
    """Raises UserError for options that do not go with ``--state``, or not without it."""
    state = options["state"]
    if state is None:
        if options["until"] is not None:
            raise UserError("--until belongs to --state. Give --state FILE, or declare another range with --end.")
        return
    if "://" in state:
        raise UserError(
            "--state must be a path on a disk, got a URL. One process at a time may work on a state, and stores have no"
            " lock that ends with its process. Logs, plan, report and dead letters may be URLs."
        )
    if options["noise_key_file"] is None:
        raise UserError(
            "--state needs --noise-key-file: all parts of a run have one key, since users are recognised by it."
            f" {MAKE_A_KEY}"
        )
    if os.path.islink(state):
        raise UserError(f"--state {state} is a link, not a regular file. Give the path of the file itself.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(state))):
        raise UserError(
            f"--state {state} cannot be written: its folder does not exist. Create it, or name another one."
        )
    try:
        open_regular(state).close()
    except FileNotFoundError:
        pass  # the first part makes it
    except OSError as error:
        raise UserError(f"--state {state} cannot be read: {error.strerror}. Check the path.") from None
    for name in ("output", "dead_letter", "noise_key_file", "plan_file"):
        if options[name] is not None and os.path.realpath(options[name]) == os.path.realpath(state):
            other = "--plan" if name == "plan_file" else flag(name)
            raise UserError(f"--state and {other} name the same file. Name two different ones.")


ledger_options = adds(
    option(
        BUDGET,
        "--ledger",
        brief="Keep account over all runs; with --population.",
        metavar="FILE|URL",
        help="Keep account over all runs: a run that does not fit is refused before its events are looked at, and"
        " the budget of one that does is reserved before anything is drawn. A file, made by the first run, or"
        " postgresql://host/database.",
    ),
    option(
        BUDGET,
        "--population",
        metavar="NAME",
        help="With --ledger: a name for all streams that share users with this one.",
    ),
    option(
        BUDGET,
        "--max-epsilon",
        metavar="FLOAT",
        help="With --ledger: what users of this population may ever lose in all runs together. Set once.",
    ),
    option(BUDGET, "--max-delta", metavar="FLOAT", help="With --ledger: failure probability of that. Set once."),
)


def account_of_options(options: dict[str, Any]) -> LedgerAccount | None:
    """The account of a run; None without ``--ledger``, and then no database library is loaded.

    Raises UserError for options that do not go together, and for a ledger that cannot be opened.
    """
    if options["ledger"] is None:
        given = [name for name in ("population", "max_epsilon", "max_delta") if options[name] is not None]
        if given:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UserError(f"{flags} belong to --ledger. Give --ledger FILE too, or leave them out.")
        return None
    if options["population"] is None:
        raise UserError(
            "--ledger needs --population: a name for all streams that share users with this one, for example"
            " --population news."
        )
    from dp_transforms.cli.ledger_account import LedgerAccount

    return LedgerAccount.of_options(options)
