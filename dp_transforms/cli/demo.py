"""``make demo``: simulates a log and replays it twice, for hits and for looks, as a user would type it."""

from __future__ import annotations

import pathlib
import shutil
import sys

from rich.console import Console

from dp_transforms.cli.main import main
from dp_transforms.reports import read_report

_FOLDER = pathlib.Path("demo")
_LOG, _HITS, _LOOKS, _PAGE = (
    str(_FOLDER / name) for name in ("clicks.parquet", "hits.avro", "looks.avro", "looks.html")
)
_REPLAY = (
    *("replay", _LOG, "--start", "2026-01-01T00:00:00Z", "--end", "2026-01-03T00:00:00Z", "--window", "1h"),
    *("--epsilon", "2", "--delta", "1e-9"),
)
_STEPS = (
    ("", ["simulate", "--events", "500000", "--users", "50000", "--days", "2", "--seed", "1", "--output", _LOG]),
    (
        "Users pay for hits: ThresholdMonitorEvolving, charged by TCT.",
        [*_REPLAY, "--release", "labels", "--hits-per-user", "10", "--output", _HITS],
    ),
    ("Users pay for looks, the default.", [*_REPLAY, "--output", _LOOKS]),
    ("", ["show", _LOOKS, "--html", _PAGE]),
)


def fresh_folder(folder: pathlib.Path) -> None:
    """Makes an empty folder in the place of an earlier one. Ends the process if something else is there, or a link."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir()
    except OSError as error:
        sys.exit(f"The folder {folder} cannot be made again: {error.strerror}. Move away what is there.")


def demo() -> None:
    """Starts from nothing: what an earlier demo made is removed."""
    fresh_folder(_FOLDER)
    console = Console(highlight=False, soft_wrap=True)
    for title, words in _STEPS:
        console.print(f"\n[bold]{title}[/]" if title else "")
        console.print(f"[bold cyan]$ shh {' '.join(words)}[/]")
        sys.stdout.flush()
        main(words)
    hits, looks = (sum(len(window.heavy_hitters) for window in read_report(path).windows) for path in (_HITS, _LOOKS))
    console.print(
        f"\nThe same log, users and budget: for hits, a user paid only where an item of its own came out near the "
        f"threshold, and {hits:,} pairs (window, item) were named; for looks, it paid for every item that it had, so "
        f"that users with few of them weigh more, and {looks:,} were named."
    )
    console.print(f"Open {pathlib.Path(_PAGE).absolute()} in a browser: it needs no network.")


if __name__ == "__main__":
    demo()
