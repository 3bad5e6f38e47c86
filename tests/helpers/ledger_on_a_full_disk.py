"""``python -m tests.helpers.ledger_on_a_full_disk FOLDER FREE``: a ledger in a folder of a small disk.

Prints what a reservation said with FREE bytes left, how many faults the doctor finds, how many runs are charged, and
what a reservation is when there is space again.
"""

from __future__ import annotations

import os
import pathlib
import sys

from dp_transforms.runs.ledger import Ledger, LedgerError
from tests.helpers.ledger_runs import CAPS, part


def main(folder: pathlib.Path, free: int) -> None:
    ledger = Ledger.open(folder / "ledger.db")
    ledger.reserve(part(run_id="run 1"), CAPS)
    disk = os.statvfs(folder)
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(max(0, disk.f_bavail * disk.f_bsize - free)))
    try:
        said = ledger.reserve(part(run_id="run 2")).line
    except LedgerError as error:
        said = str(error)
    faults = sum(finding.is_fault for finding in ledger.doctor())
    runs = ledger.balances()[0].runs
    ballast.unlink()
    again = ledger.reserve(part(run_id="run 3")).kind
    print(said, faults, runs, again, sep=" | ")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
