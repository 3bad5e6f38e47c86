"""The options that say where a run is accounted for; what knows the ledger is loaded only where they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dp_transforms.cli.grouped_options import BUDGET, AnyFunction, add_options, option
from dp_transforms.errors import UserError

if TYPE_CHECKING:
    from dp_transforms.cli.ledger_account import LedgerAccount


def ledger_options(function: AnyFunction) -> AnyFunction:
    """Adds the options that say where a run is accounted for."""
    options = (
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
    return add_options(function, *options)


def check_ledger_options(options: dict[str, Any]) -> None:
    """Raises UserError for options that do not go together."""
    if options["ledger"] is None:
        given = [name for name in ("population", "max_epsilon", "max_delta") if options[name] is not None]
        if given:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UserError(f"{flags} belong to --ledger. Give --ledger FILE too, or leave them out.")
    elif options["population"] is None:
        raise UserError(
            "--ledger needs --population: a name for all streams that share users with this one, for example"
            " --population news."
        )


def account_of_options(options: dict[str, Any]) -> LedgerAccount | None:
    """The account of a run; None without ``--ledger``, and then no database library is loaded.

    Raises UserError for options that do not go together, and for a ledger that cannot be opened.
    """
    check_ledger_options(options)
    if options["ledger"] is None:
        return None
    from dp_transforms.cli.ledger_account import LedgerAccount

    return LedgerAccount.of_options(options)
