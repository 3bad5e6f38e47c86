"""The ledger: which runs drew on the budget of which users, for ever; in a database that several people share.

Guarantee: of all runs of one population only those were allowed to draw whose prices add up to at most its caps, by the
`BudgetRule` that was fixed when it was declared (`plan.lifetime_cost`, docs/guarantee.md section 10). A run is
charged when it is reserved, before it reads its events, and the charge stays whatever happens to it; only a run without
a start record can be released. For each run id a window is handled by at most one part with one input.

It holds no event, no user id and no label: names, times, fingerprints and whole numbers.

Each module imports only those above it:

- `errors`: what is refused, busy or damaged. `actor`: who writes, and whether the process that wrote still lives.
- `records`: what is asked, stored and answered. `judgement`: may this part run? Pure: no database.
- `schema`: the tables.
- `counter_file`: the number of the last entry, kept beside a ledger file. `engines`: SQLite and PostgreSQL.
  `database`: transactions on them.
- `rows`: records to rows and back. `doctor`: what is wrong with a ledger. `reserving`: how a part is reserved.
- `ledger`: `Ledger`, the way in.
"""

from __future__ import annotations

from dp_transforms.runs.ledger.doctor import Finding
from dp_transforms.runs.ledger.errors import (
    BudgetExceededError,
    LedgerBusyError,
    LedgerDamagedError,
    LedgerError,
    LedgerUnsettledError,
    RunRefusedError,
)
from dp_transforms.runs.ledger.ledger import Ledger
from dp_transforms.runs.ledger.records import Balance, Caps, PartRequest, StateMark, Verdict, VerdictKind

__all__ = [
    "Balance",
    "BudgetExceededError",
    "Caps",
    "Finding",
    "Ledger",
    "LedgerBusyError",
    "LedgerDamagedError",
    "LedgerError",
    "LedgerUnsettledError",
    "PartRequest",
    "RunRefusedError",
    "StateMark",
    "Verdict",
    "VerdictKind",
]
