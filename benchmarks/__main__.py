"""``python -m benchmarks [finding] [speed] [streams]``: the named ones, or all three."""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks.report import Figure

_OPTIONS = {"finding": ("methods", "runs"), "speed": ("beam_events", "runs"), "streams": ("rate", "minutes")}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Exit code 1: a target was missed.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(_OPTIONS)}; default: all")
    parser.add_argument("--runs", type=int, default=3, help="of finding and speed, each; default: 3")
    parser.add_argument(
        "--methods", nargs="+", default=(), metavar="BEGINNING", help="of finding: run these, keep the other rows"
    )
    parser.add_argument(
        "--beam-events", type=int, default=1_000_000, help="of speed: how many Beam's element path counts"
    )
    parser.add_argument("--rate", type=int, default=150_000, help="of streams: events/s; default: 150000")
    parser.add_argument("--minutes", type=float, default=10.0, help="of streams: how long; default: 10")
    options = parser.parse_args()
    unknown = set(options.names) - set(_OPTIONS)
    if unknown:
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}; there are {', '.join(_OPTIONS)}.")
    figures: list[Figure] = []
    for name, taken in _OPTIONS.items():
        if name in (options.names or _OPTIONS):
            run = importlib.import_module(f"benchmarks.{name}").run
            figures += run(**{option: getattr(options, option) for option in taken})
    missed = [figure.name for figure in figures if figure.passed is False]
    for name in missed:
        print(f"missed: {name}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
