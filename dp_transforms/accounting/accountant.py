"""The one question that every accountant answers: what does the whole interaction cost?

Guarantee of each object with this interface: the interaction that it describes is (epsilon, delta(epsilon))-DP for
every epsilon, and (epsilon(delta), delta)-DP for every delta. Neither number is ever rounded down. Each class says
which interaction, and for which unit of privacy. The package's docstring lists them.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Accountant(Protocol):
    """The privacy cost of one interaction, as a curve: delta as a function of epsilon, and its inverse.

    Objects are frozen dataclasses: their fields are the declared numbers of the interaction, checked when they are
    built. Equal fields mean equal curves.
    """

    def delta(self, epsilon: float) -> float:
        """The smallest delta in [0, 1] that is proved at this epsilon. Does not increase with epsilon.

        ValueError: epsilon is negative, infinite or NaN.
        """
        ...

    def epsilon(self, delta: float) -> float:
        """An epsilon >= 0, rounded up, at which the interaction has this delta; infinite if the method proves none.

        ValueError: delta does not lie strictly between 0 and 1.
        """
        ...
