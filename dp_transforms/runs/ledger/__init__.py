"""The ledger: which runs drew on the budget of which users, for ever; in an SQLite file.

Guarantee: of all runs of one population only those were allowed to draw whose prices add up to at most its caps, by the
`BudgetRule` that was fixed when it was declared (`runs.lifetime_cost`, docs/guarantee.md, "Many runs"). A run is
charged when it is reserved, before it reads its events, and the charge stays whatever happens to it; only a run without
a start record can be released. For each run id a window is handled by at most one part with one input.

It holds no event, no user id and no label: names, times, fingerprints and whole numbers.

Each module imports only those above it:

- `book`: the journal, of which each entry names the digest of the one before, what it adds up to, and the next entry;
  who writes, and whether the process that wrote still lives.
- `copy_file`: the copy of the journal beside a ledger file. `database`: transactions.
- `reserving`: how a part that may run (`runs.judge`) is reserved. `doctor`: what is wrong with a ledger.
- `ledger`: `Ledger`, the way in.
"""

from __future__ import annotations

from dp_transforms.runs.ledger.ledger import Ledger

__all__ = ["Ledger"]
