"""Entrance of the command ``shh``. Handlers of Ctrl-C, SIGTERM and SIGHUP come before anything else is imported."""

from __future__ import annotations

import atexit
import gc
import sys

from dp_transforms.cli import exit_signals
from dp_transforms.lean_imports import go_without_pandas

TYPE_CHECKING = False  # what typing has, without its 10 ms
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``shh``. Returns when it is done; else raises SystemExit with one of these codes.

    1: refused or failed; one line on stderr begins with ``shh:`` and says why. 2: the command line cannot be read (an
    unknown or missing option, a value of the wrong kind); stderr shows the usage. 3 and 4: of `shh replay`
    (docs/commands.md). 130, 143, 129: stopped by Ctrl-C, SIGTERM, SIGHUP.

    arguments: None for those of this process, whose handlers then stay installed to its end.
    """
    before = exit_signals.install()
    if arguments is None:
        go_without_pandas()
        atexit.register(exit_signals.ignore)  # Python takes the handlers away when it ends
        atexit.register(gc.freeze)  # and looks twice through all that was loaded, for garbage: a third of a second
    try:
        from dp_transforms.cli import subcommands

        subcommands.run(sys.argv[1:] if arguments is None else arguments)
    finally:
        if arguments is not None:
            exit_signals.restore(before)


if __name__ == "__main__":
    main()
