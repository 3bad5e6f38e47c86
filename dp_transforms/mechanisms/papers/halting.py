"""What every mechanism of this package does once it has given all that it may give: it raises `Halted`."""

from __future__ import annotations


class Halted(RuntimeError):  # noqa: N818
    """The mechanism has halted and answers no further query; a new one on the same data costs its whole budget again.

    Halting depends on published results and declared limits alone, so this error may be published too.
    """
