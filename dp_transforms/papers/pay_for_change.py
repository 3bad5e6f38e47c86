"""Answers about a stream, paid for only when they change ([CL23] section 2.1, "Pay-only-for-change")."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dp_transforms.papers.private_computation import NotPrior, PrivateComputation
from dp_transforms.papers.target_charging import TargetCharging


class PayForChange:
    """Asks at every step of a stream; an answer that equals the one before it costs nothing.

    Guarantee: that of the `TargetCharging` that it is given. A step is a call whose prior is the answer published last,
    so a change is one hit of a `NotPrior` target ([CL23] Lemma 2.3), and the steps without one may be endlessly many.
    Condition: as there, where the data of a user are all that it ever adds to the stream; the computation of a step
    reads what has come until then. What is compared is the answer as published: let it be one of few, such as the
    nearest of some levels, since a number with fresh noise changes at every step.

    prior: what is expected of the first step, known beforehand, such as the answer on an older data set. It becomes
    the last answer; an exception, which is charged as a hit, leaves it as it was.

    >>> from dp_transforms.papers.private_computation import exponential_choice
    >>> from dp_transforms.papers.target_charging import HitLimit
    >>> online, levels = [3] * 40 + [95] * 40, (0, 50, 100)
    >>> limit = HitLimit(2, epsilon=1.0)
    >>> answers = PayForChange(TargetCharging(online, limit), prior=0)
    >>> def level(step):
    ...     return exponential_choice(levels, lambda counts: [-abs(counts[step] - one) for one in levels], epsilon=1.0)
    >>> [answers.ask(level(step)) for step in range(80)] == [0] * 40 + [100] * 40, limit.used
    (True, 1)
    """

    def __init__(self, charging: TargetCharging, prior: Hashable) -> None:
        self._charging = charging
        self.prior = prior

    def ask(self, computation: PrivateComputation) -> Any:
        """The answer of this step, to be published. Raises Halted if one more change could exceed a limit."""
        self.prior = self._charging.ask(computation, NotPrior(self.prior))
        return self.prior
