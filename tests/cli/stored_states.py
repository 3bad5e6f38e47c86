"""States that a release left in the middle of a run, and the reports of the other half.

`python -m tests.cli.stored_states` writes those of this release, for good when it is made: later ones must go on
from them with the same answers, or have another version of the format, and refuse them.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Callable
from unittest import mock

from dp_transforms import Plan, WindowSchedule
from dp_transforms.runs import state_part
from tests.helpers.modes import plan_in_rounds
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "states_0.1.0"
HALVES = {"first": range(6), "second": range(6, 12)}  # hours
_SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-01T12:00:00Z", "1h")
PLANS: dict[str, Callable[[], Plan]] = {
    "contributions": lambda: Plan.for_contributions(
        epsilon=20, delta=1e-3, schedule=_SCHEDULE, usual_contributions=(1, 2), use="parts"
    ),
    "hits-with-counts": lambda: Plan.for_hits(epsilon=40, delta=0.1, schedule=_SCHEDULE, counts=True, hits_per_user=20),
    "rounds": lambda: plan_in_rounds(_SCHEDULE, epsilon=20, delta=1e-3, block_seconds=3 * 3600),
}
_NONCE = "7" * 32  # of the other half
_USERS = 24


def _take(folder: pathlib.Path, half: str, *words: str) -> pathlib.Path:
    """Half of a run, in this folder. A few users come once, for a small state."""
    rows = [
        (f"u{user}" if user % 8 else f"u{user}-{hour % 4}", item, hour)
        for hour in HALVES[half]
        for user in range(_USERS)
        for item in ("always", f"top-{hour // 4}", f"odd-{user % 6}")
    ]
    lines = ["user,item,timestamp", *(f"{user},{item},2026-01-01T{hour:02}:30:00Z" for user, item, hour in rows)]
    (folder / f"{half}.csv").write_text("\n".join(lines))
    key_file(folder)
    done = shh(
        *("replay", f"{half}.csv", "--state", "run.state", "--noise-key-file", "noise.key"),
        *("--output", f"{half}.jsonl", *words),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder / f"{half}.jsonl"


def go_on(name: str, folder: pathlib.Path) -> pathlib.Path:
    """The report of the second half, from a stored state and its ledger."""
    for ending in ("state", "state.ledger"):
        shutil.copy(FOLDER / f"{name}.{ending}", folder / f"run.{ending}")
        (folder / f"run.{ending}").chmod(0o600)
    shutil.copy(FOLDER / f"{name}.plan.json", folder / "plan.json")
    with mock.patch.object(state_part, "fresh_nonce", return_value=_NONCE):
        return _take(folder, "second", "--plan", "plan.json")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in PLANS.items():
        (FOLDER / f"{name}.plan.json").write_text(make().to_json())
        with tempfile.TemporaryDirectory() as folder:
            here = pathlib.Path(folder)
            _take(here, "first", "--plan", f"{FOLDER}/{name}.plan.json", "--until", "2026-01-01T06:00:00Z")
            for ending in ("state", "state.ledger"):
                shutil.copy(here / f"run.{ending}", FOLDER / f"{name}.{ending}")
            shutil.copy(go_on(name, here), FOLDER / f"{name}.jsonl")


if __name__ == "__main__":
    main()
