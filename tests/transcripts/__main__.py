"""`python -m tests.transcripts write [MODE ...]` writes data/ anew, by as many processes as there are cores."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import sys

from tests.transcripts.cases import MODES
from tests.transcripts.transcript import members, ran, write


def main(words: list[str]) -> int:
    if words[:1] != ["write"] or not set(words[1:]) <= set(MODES):
        print(f"python -m tests.transcripts write [MODE ...]; modes: {', '.join(MODES)}", file=sys.stderr)
        return 2
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(mp_context=fresh) as pool:
        modes = words[1:] or list(MODES)
        running = {mode: {member: pool.submit(ran, mode, member) for member in members()} for mode in modes}
        for mode, of_mode in running.items():
            write(mode, {member: future.result() for member, future in of_mode.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
