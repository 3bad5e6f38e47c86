"""Entrance of the command ``shh``. Imports nothing before Ctrl-C and SIGTERM are in good hands."""

from __future__ import annotations

import sys

from dp_transforms.pipelines import exit_signals

TYPE_CHECKING = False  # what typing has, without its 10 ms
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``shh``. Exit codes: 0 done, 1 the run failed, 2 the command line is wrong, 130 and 143 stopped by a signal.

    arguments: None for those of this process, which is then ready to be stopped to its very end.
    """
    before = exit_signals.install()
    try:
        from dp_transforms.pipelines import subcommands

        subcommands.run(sys.argv[1:] if arguments is None else arguments)
    finally:
        if arguments is not None:
            exit_signals.restore(before)


if __name__ == "__main__":
    main()
