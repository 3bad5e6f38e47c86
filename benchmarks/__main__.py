"""``python -m benchmarks [NAME ...] [--quick] [--full]``: the named ones, or all."""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks.report import Figure

_NAMES = ("speed", "finding", "stream_load")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures; exit code 1: a target missed.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(_NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: does it run? The figures say little")
    parser.add_argument("--full", action="store_true", help="speed: all of Beam's element path, minutes more")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long stream_load holds its rate; default: 10")
    parser.add_argument(
        "--rates", type=int, nargs="+", default=(), help="events/s that stream_load tries, rising; one: no search"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of finding; default: 3")
    parser.add_argument("--methods", nargs="+", default=(), help="finding: run these alone, keep the other rows")
    options = parser.parse_args()
    unknown = set(options.names) - set(_NAMES)
    if unknown:
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)}.")
    missed: list[Figure] = []
    for name in _NAMES:
        if options.names and name not in options.names:
            continue
        more = {
            "speed": {"full": options.full},
            "finding": {"rounds": options.rounds, "methods": options.methods},
            "stream_load": {"minutes": options.minutes, "rates": options.rates},
        }[name]
        figures = importlib.import_module(f"benchmarks.{name}").run(quick=options.quick, **more)
        missed += [figure for figure in figures or () if figure.passed is False]
    for figure in missed:
        print(f"missed: {figure.name}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
