"""The sparse vector technique: which queries of a stream are above a threshold ([DR14] 3.6, Algorithms 1 to 3).

All three compare a noisy answer with a noisy threshold, pay only for answers "above", and halt after a fixed number of
them. Queries may be chosen from what was published before. Unit: one user, who changes an answer by at most 1.

Noise is drawn in units of ``1 / grid`` (`query`). Let s be the number of units by which one user may change an answer,
at most. One run of [DR14] Algorithm 1 at epsilon' draws a threshold's noise with ``epsilon' / (2 s)`` for each unit and
an answer's noise with ``epsilon' / (4 s)``. All epsilons are rounded down. Proofs: docs/proofs.md, "Sparse
vector".

Whether a query raises must not depend on the data (`query`): nothing here can pay for what that shows. A query is
answered before noise is drawn, so an exception leaves the mechanism as it was. One thread at a time may ask.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dp_transforms.accounting.discrete_laplace_law import ROUNDING
from dp_transforms.checks import check_fraction, check_positive, check_whole
from dp_transforms.papers.noise_source import Halted, NoiseSource, SecretNoise, check_small_delta
from dp_transforms.papers.query import Query, check_grid, epsilon_per_unit, units_up

_LARGEST_CUTOFF = 2**31
_COMPARISON_SHARE = 8 / 9  # of epsilon, delta = 0 ([DR14] Algorithm 3)
_COMPARISON_SHARE_ADVANCED = math.sqrt(512) / (math.sqrt(512) + 1)  # delta > 0


def epsilon_per_run(epsilon: float, delta: float, cutoff: int) -> float:
    """The epsilon' for which `cutoff` adaptive calls to epsilon'-DP mechanisms are (epsilon, delta)-DP.

    delta = 0: ``epsilon / cutoff``. delta > 0: ``epsilon / sqrt(8 cutoff ln(1/delta))`` as in [DR14] Theorem 3.25,
    which is right only if epsilon or cutoff is at most ``8 ln(1/delta)``; beyond, the largest epsilon' that advanced
    composition allows (docs/proofs.md, "Sparse vector").
    """
    _check_budget(epsilon, delta, cutoff)
    basic = epsilon / cutoff
    if delta == 0:
        return basic * (1 - ROUNDING)
    log_inverse = -math.log(delta)
    published = epsilon / math.sqrt(8 * cutoff * log_inverse)
    # The root of cutoff x^2 / 2 + x sqrt(2 cutoff ln(1/delta)) = epsilon, without a difference of near numbers.
    advanced = 2 * epsilon / (math.sqrt(2 * log_inverse) + math.sqrt(2 * log_inverse + 2 * epsilon))
    advanced /= math.sqrt(cutoff)
    return min(published, max(basic, advanced)) * (1 - ROUNDING)


class _SparseVector:
    """[DR14] Algorithm 1, again and again, until it has ended `cutoff` times."""

    def __init__(
        self,
        data: Any,
        *,
        epsilon: float,
        threshold: float,
        cutoff: int,
        delta: float = 0.0,
        grid: int = 1,
        sensitivity_units: int | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        run_epsilon, value_epsilon = self._epsilons(epsilon, delta, cutoff)
        check_grid(grid)
        if sensitivity_units is None:
            sensitivity_units = 1 if grid == 1 else grid + 1
        check_whole("sensitivity_units", sensitivity_units, 1)
        self._data = data
        self._cutoff = cutoff
        self._grid = grid
        self._sensitivity = sensitivity_units
        self._threshold = units_up(threshold, grid)
        self._threshold_shift = float(Fraction(self._threshold, grid) - Fraction(float(threshold)))
        self._noise = SecretNoise() if noise is None else noise
        self._threshold_epsilon = epsilon_per_unit(run_epsilon / 2, self._sensitivity)
        self._query_epsilon = epsilon_per_unit(run_epsilon / 4, self._sensitivity)
        self._value_epsilon = epsilon_per_unit(value_epsilon, self._sensitivity) if value_epsilon else 0.0
        self._tops = 0
        self._begin_run()

    @staticmethod
    def _epsilons(epsilon: float, delta: float, cutoff: int) -> tuple[float, float]:
        """Of each run of Algorithm 1, and of each value that is published; 0 where none is."""
        return epsilon_per_run(epsilon, delta, cutoff), 0.0

    @property
    def tops(self) -> int:
        """How many answers were above the threshold so far. Published, as every answer is."""
        return self._tops

    @property
    def halted(self) -> bool:
        """Whether no more queries are answered. Published, as every answer is."""
        return self._tops >= self._cutoff

    def _begin_run(self) -> None:
        self._noisy_threshold = self._threshold + self._noise.discrete_laplace(self._threshold_epsilon)

    def _exact_answer(self, query: Query) -> int:
        if self.halted:
            raise Halted(f"the mechanism has halted after {self._tops} answers above the threshold.")
        if query.grid != self._grid:
            raise ValueError(f"the query must have grid {self._grid}, as the mechanism has, got {query.grid}.")
        if query.sensitivity > self._sensitivity:
            raise ValueError(
                f"one user may change the answer by at most {self._sensitivity} units, got {query.sensitivity}. "
                f"Build the mechanism with a larger sensitivity_units."
            )
        return query.answer(self._data)

    def _is_above(self, answer: int) -> bool:
        above = bool(answer + self._noise.discrete_laplace(self._query_epsilon) >= self._noisy_threshold)
        if above:
            self._tops += 1
            if not self.halted:
                self._begin_run()
        return above

    def comparison_accuracy(self, queries: int, beta: float) -> float:
        """An alpha within which every comparison of the first `queries` is right, except with probability beta.

        Twice what neither an answer's noise nor a threshold's exceeds.
        """
        check_whole("queries", queries, 1)
        check_fraction("beta", beta)
        units = math.ceil((math.log(queries) + math.log(2 * self._cutoff / beta)) / self._query_epsilon)
        return 2 * units / self._grid + self._threshold_shift


class Sparse(_SparseVector):
    """Answers top (True) or bottom (False) until the `cutoff`-th top ([DR14] Algorithm 2).

    Guarantee: (epsilon, delta)-DP, for any number of adaptive queries. Conditions, data and threshold: as for
    `AboveThreshold`, which it runs `cutoff` times, each time with new noise, at `epsilon_per_run`. Source: [DR14]
    Theorem 3.25, whose noise for delta > 0 is too small if both epsilon and cutoff exceed ``8 ln(1/delta)``; more is
    drawn there. With ``cutoff <= 8 ln(1/delta)``, delta = 0 is the better choice: it draws less noise.

    >>> from dp_transforms.papers.query import LinearQuery
    >>> stream = Sparse([3, 900, 800], epsilon=1.0, threshold=400, cutoff=2)
    >>> [stream.ask(LinearQuery(weights)) for weights in ([1, 0, 0], [0, 1, 0], [0, 0, 1])], stream.halted
    ([False, True, True], True)
    """

    def ask(self, query: Query) -> bool:
        """Whether the noisy answer reaches the noisy threshold. Raises Halted after the last True."""
        return self._is_above(self._exact_answer(query))

    def accuracy(self, queries: int, beta: float) -> float:
        """The alpha of [DR14] Theorem 3.26: with probability at least 1 - beta, of the first `queries` answers all True
        ones have ``f >= threshold - alpha``, and all False ones ``f <= threshold + alpha``.

        ``8 cutoff (ln k + ln(2 cutoff/beta)) / epsilon`` for delta = 0, ``sqrt(512 cutoff ln(1/delta)) (ln k +
        ln(2 cutoff/beta)) / epsilon`` for delta > 0 (more where more noise is drawn), times sensitivity_units / grid,
        rounded up to an even number of units, plus what the threshold was rounded up by. f is the answer before it was
        put on the grid. All queries are answered if fewer than `cutoff` of those before the last have ``f >= threshold
        - alpha``.
        """
        return self.comparison_accuracy(queries, beta)


class AboveThreshold(Sparse):
    """Answers top (True) or bottom (False) until the first top ([DR14] Algorithm 1).

    Guarantee: epsilon-DP, for any number of adaptive queries. Condition: one user changes an answer by at most
    `sensitivity_units` units of ``1 / grid``. The default is 1 unit for grid 1 and grid + 1 units else: enough for
    every `RealQuery`, and for every `LinearQuery` of users with one record each, which needs `grid` units only.
    Source: [DR14] Theorem 3.23. If no answer of a stream can rise while another one falls, half of the answers' noise
    would do (Lyu, Su, Li 2017); this is not used.

    Accuracy: `accuracy` is then the alpha of [DR14] Theorem 3.24, ``8 (ln k + ln(2/beta)) / epsilon``.

    data: given once, to every query. threshold: a number, rounded up to a multiple of 1 / grid. as_sparse: grid,
    sensitivity_units and noise, as in `Sparse`.

    >>> from dp_transforms.papers.query import RealQuery
    >>> stream = AboveThreshold([3, 900], epsilon=1.0, threshold=400)
    >>> [stream.ask(RealQuery(lambda counts, item=item: counts[item])) for item in (0, 1)], stream.halted
    ([False, True], True)
    """

    def __init__(self, data: Any, *, epsilon: float, threshold: float, **as_sparse: Any) -> None:
        super().__init__(data, epsilon=epsilon, threshold=threshold, cutoff=1, **as_sparse)


class NumericSparse(_SparseVector):
    """Answers a noisy value if the query is above the threshold, else None, until the `cutoff`-th value ([DR14]
    Algorithm 3). The value has noise of its own: that of the comparison is never published.

    Guarantee: (epsilon, delta)-DP, for any number of adaptive queries. Conditions, data and threshold: as for
    `AboveThreshold`. Source: [DR14] Theorem 3.27. delta = 0: `Sparse` at 8/9 epsilon, and values at epsilon / (9
    cutoff) each. delta > 0: a share sqrt(512) / (sqrt(512) + 1) of epsilon for `Sparse`, the rest for the values, each
    part with delta / 2.

    >>> from dp_transforms.papers.query import RealQuery
    >>> stream = NumericSparse([3, 900], epsilon=2.0, threshold=400, cutoff=1)
    >>> answers = [stream.ask(RealQuery(lambda counts, item=item: counts[item])) for item in (0, 1)]
    >>> answers[0] is None, abs(answers[1] - 900) < 200, stream.halted
    (True, True, True)
    """

    @staticmethod
    def _epsilons(epsilon: float, delta: float, cutoff: int) -> tuple[float, float]:
        _check_budget(epsilon, delta, cutoff)
        share = _COMPARISON_SHARE if delta == 0 else _COMPARISON_SHARE_ADVANCED
        run_epsilon = epsilon_per_run(share * epsilon, delta / 2, cutoff)
        return run_epsilon, epsilon_per_run((1 - share) * epsilon, delta / 2, cutoff)

    def ask(self, query: Query) -> float | None:
        """The answer with noise, a multiple of 1 / grid; None below the threshold. Raises Halted after the last one."""
        answer = self._exact_answer(query)
        if not self._is_above(answer):
            return None
        return int(answer + self._noise.discrete_laplace(self._value_epsilon)) / self._grid

    def accuracy(self, queries: int, beta: float) -> float:
        """An alpha for which, with probability at least 1 - beta, the first `queries` answers are like this: a value
        has ``|f - value| <= alpha`` and ``f >= threshold - alpha``, and None has ``f <= threshold + alpha``.

        delta = 0: ``9 cutoff (ln k + ln(4 cutoff/beta)) / epsilon`` ([DR14] Theorem 3.28); grid and rounding as for
        `AboveThreshold`, and one unit more for a value. delta > 0: the theorem's formula, ``(sqrt(512) + 1)
        sqrt(cutoff ln(2/delta)) (ln k + ln(4 cutoff/beta)) / epsilon``, or what the values need, if that is more.
        """
        check_whole("queries", queries, 1)
        check_fraction("beta", beta)
        return max(self.comparison_accuracy(queries, beta / 2), self.value_accuracy(beta / 2))

    def value_accuracy(self, beta: float) -> float:
        """The part of `accuracy` that `comparison_accuracy` is not, about all values alone, with all of beta for it."""
        check_fraction("beta", beta)
        units = math.ceil(math.log(self._cutoff / beta) / self._value_epsilon) + (self._grid > 1)
        return units / self._grid


def _check_budget(epsilon: float, delta: float, cutoff: int) -> None:
    check_positive("epsilon", epsilon)
    check_small_delta("delta", delta)
    check_whole("cutoff", cutoff, 1, _LARGEST_CUTOFF)
