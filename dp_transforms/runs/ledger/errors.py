"""What a ledger refuses, and why it cannot be used: each error is one line with the remedy."""

from __future__ import annotations


class LedgerError(Exception):
    """The ledger cannot be opened, read or written; nothing was changed."""


class BudgetExceededError(LedgerError):
    """The run would take more than its population has left."""


class RunRefusedError(LedgerError):
    """The part does not fit to what the ledger knows of its run, or of its population."""


class LedgerBusyError(LedgerError):
    """Another process has the ledger, or this part, at this moment."""


class LedgerUnsettledError(LedgerError):
    """The entry is made, but a copy that is older by this entry would pass for the ledger."""


class LedgerDamagedError(LedgerError):
    """The ledger is not the one that was last written: damaged, deleted, restored from a backup, or changed."""
