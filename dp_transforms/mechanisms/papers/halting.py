"""`Halted`: what every mechanism of this package raises once its budget is used up."""

from __future__ import annotations


class Halted(RuntimeError):  # noqa: N818
    """The mechanism has halted and answers no more queries. A new one on the same data costs its whole budget again.

    Halting depends on published results and declared limits alone, so this error may be published too.
    """
