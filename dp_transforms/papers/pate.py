"""Labels by the votes of private teachers, paid for only where the teachers are torn: PATE ([CL23] section 2.7.1).

The records are divided among teachers, and each trains a model on its part. All of them vote on the label of a public
example, and a label is drawn from the votes. [CL23] charges it in three ways, the calls (i) to (iii) here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dp_transforms.accounting.discrete_laplace_law import UNIFORM_BITS, upper_tail_integers
from dp_transforms.checks import check_whole
from dp_transforms.papers.private_computation import (
    BoundaryWrapper,
    FiniteMechanism,
    NotPrior,
    OwnTarget,
    exponential_choice,
)

LOW = "low"


@dataclasses.dataclass(frozen=True)
class TeacherVotes:
    """What teachers say about one example: each method is a call to `TargetCharging.ask`, a computation and its target.

    Guarantee: that of the `TargetCharging` which is asked. Condition: one user is behind one teacher, and may move its
    vote from any label to any other, for each example.

    labels: declared. votes(data): how many teachers give this example each label, in the order of `labels`.
    epsilon: of the label that is drawn, by the exponential mechanism.

    >>> from dp_transforms.papers.target_charging import HitLimit, TargetCharging
    >>> votes = TeacherVotes(("cat", "dog"), lambda counts: counts, epsilon=0.5)
    >>> limit = HitLimit(1, epsilon=1.4, target_probability=0.1)
    >>> charging = TargetCharging([900, 100], limit)
    >>> charging.ask(*votes.agreed()), charging.ask(*votes.agreed_or_low(500, test_epsilon=0.5)), limit.used
    ('cat', 'cat', 0)
    >>> charging.ask(*votes.as_predicted("dog")), limit.used  # the student was wrong: this one is paid
    ('cat', 1)
    """

    labels: tuple[Hashable, ...]
    votes: Callable[[Any], Sequence[int]]
    epsilon: float

    def label(self) -> FiniteMechanism:
        """A label, the likelier the more votes it has; a moved vote changes two counts, by 1 each."""
        return exponential_choice(self.labels, self.votes, self.epsilon)

    def agreed(self) -> tuple[BoundaryWrapper, OwnTarget]:
        """(i): a label or ``boundary``, which alone is paid: the more often, the less the teachers agree."""
        wrapped = BoundaryWrapper(self.label())
        return wrapped, wrapped.target

    def agreed_or_low(self, threshold: int, test_epsilon: float) -> tuple[BoundaryWrapper, OwnTarget]:
        """(ii): also ``low``, for nothing, where all are sure that no label has many votes.

        The largest count, which a moved vote changes by at most 1, is tested with discrete Laplace noise of
        `test_epsilon`; a label is drawn if it reaches the threshold. Both together are wrapped, as one mechanism with
        ``epsilon + test_epsilon``. Its weights are rounded: a total variation below 2^-126 before it is wrapped.
        """
        check_whole("threshold", threshold, 1)
        tails = upper_tail_integers(test_epsilon)  # of Pr[Z >= 1], Pr[Z >= 2], ..., in units of 2^-128
        if LOW in self.labels:
            raise ValueError(f"{LOW!r} cannot be a label. Rename it.")
        label = self.label()

        def tail(margin: int) -> int:
            return tails[margin - 1] if margin <= len(tails) else 0

        def weights(data: Any) -> list[int]:
            drawn = label.checked_weights(data)
            missing = threshold - max(self.votes(data))
            reached = tail(missing) if missing >= 1 else (1 << UNIFORM_BITS) - tail(1 - missing)
            return [*(reached * weight for weight in drawn), ((1 << UNIFORM_BITS) - reached) * sum(drawn)]

        combined = FiniteMechanism((*self.labels, LOW), weights, self.epsilon + test_epsilon)
        wrapped = BoundaryWrapper(combined)
        return wrapped, wrapped.target

    def as_predicted(self, prediction: Hashable) -> tuple[FiniteMechanism, NotPrior]:
        """(iii): a label, paid unless it is the student's prediction, which is the prior.

        Condition: the student has learnt from published labels and public examples alone.
        """
        return self.label(), NotPrior(prediction)
