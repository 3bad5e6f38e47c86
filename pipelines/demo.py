"""``make demo``: simulates a log, replays it, shows the result and writes its page, as a user would type it."""

from __future__ import annotations

import pathlib
import shutil
import sys

from rich.console import Console

from dp_transforms.pipelines.cli import main

_FOLDER = pathlib.Path("demo")
_LOG, _REPORT, _PAGE = (str(_FOLDER / name) for name in ("clicks.parquet", "report.avro", "report.html"))
_STEPS = (
    ["simulate", "--events", "500000", "--users", "50000", "--days", "2", "--seed", "1", "--output", _LOG],
    [
        *("replay", _LOG, "--start", "2026-01-01T00:00:00Z", "--end", "2026-01-03T00:00:00Z", "--window", "1h"),
        *("--epsilon", "2", "--delta", "1e-9", "--output", _REPORT),
    ],
    ["show", _REPORT, "--html", _PAGE],
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
    for words in _STEPS:
        console.print(f"\n[bold cyan]$ shh {' '.join(words)}[/]")
        sys.stdout.flush()
        main(words)
    console.print(f"\nOpen {pathlib.Path(_PAGE).absolute()} in a browser: it needs no network.")


if __name__ == "__main__":
    demo()
