"""``python -m tests.fuzz``: the long campaign, or one case again.

python -m tests.fuzz                             a million mutated inputs over all readers; exit code 1 for any fault
python -m tests.fuzz --cases 5000 --reader csv   fewer, of one reader
python -m tests.fuzz --case csv:1:4711           one mutated input, in this process, with the whole traceback
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import time
import traceback

from tests.fuzz.campaign import Tally, alike, run
from tests.fuzz.reader import FaultError, mutated_input, outcome
from tests.fuzz.readers import all_readers, cases_by_reader

_MILLION = 1_000_000
_HEAD = "| reader | mutated inputs | accepted | refused | faults | slowest (CPU) | most memory |\n|---|" + "---:|" * 6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=_MILLION, help="over all readers, or of --reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", action="append", choices=sorted(all_readers()))
    parser.add_argument("--case", metavar="READER:SEED:NUMBER")
    parser.add_argument("--write", metavar="FILE", type=pathlib.Path, help="with --case: where to put its bytes")
    options = parser.parse_args()
    if options.case:
        return _again(options.case, options.write)
    counts = dict.fromkeys(options.reader or (), options.cases) or cases_by_reader(options.cases)
    began, tallies = time.monotonic(), dict[str, Tally]()
    print(_HEAD)
    for name, count in counts.items():
        result = run({name: count}, options.seed)[name]
        tallies[name] = result.tally
        print(_row(name, [result.tally]), flush=True)
        for times, one in alike(result.found):
            print(f"    {times} times, first {one.case} ({one.sample}): {one.what}", flush=True)
    print(_row("all", list(tallies.values())))
    print(f"\nSeed {options.seed}, {(time.monotonic() - began) / 60:.0f} minutes on one core.")
    return int(any(tally.faults for tally in tallies.values()))


def _row(name: str, tallies: list[Tally]) -> str:
    sums = [f"{sum(getattr(one, field) for one in tallies):,}" for field in ("cases", "accepted", "refused", "faults")]
    slowest, memory = max(one.slowest for one in tallies), max(one.memory for one in tallies)
    return f"| {name} | {' | '.join(sums)} | {slowest:.2f} s | {memory / 1e6:.0f} MB |"


def _again(case: str, write: pathlib.Path | None) -> int:
    name, seed, number = case.split(":")
    reader = all_readers()[name]
    one = mutated_input(reader, reader.samples(), int(seed), int(number))
    if write is not None:
        write.write_bytes(one.data)
    print(f"sample {one.sample.name!r}, {len(one.data)} bytes")
    with tempfile.TemporaryDirectory() as folder:
        place = reader.place(folder, "m", one.sample, one.data)
        time.sleep(reader.settle_seconds)
        began = time.process_time()
        try:
            print(*outcome(reader, one.sample, place))
        except FaultError:
            traceback.print_exc()
            return 1
        finally:
            print(f"{time.process_time() - began:.2f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
