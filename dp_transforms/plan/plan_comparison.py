"""From how many users on an item is found: by a plan, by the other modes, and by the methods of others.

For comparison alone: no plan depends on it. Methods of others have the same budget for a user's whole life. All holders
of the item have equally many pairs (window, item) in the run (`looks`). A method that bounds how many of them count
keeps a random choice of them.

- Partition selection, as PipelineDP and the C++ library of google/differential-privacy do it: each pair is a partition;
  each user contributes to at most so many (the cap). The best cap for this activity, which its user would have to know.
- Weighted Gaussian [GGK20]: each user adds 1/sqrt(its pairs) to each of them; one Gaussian noise, one threshold.
- Gaussian histograms: a noisy histogram for each window, where a user counts for at most so many items.

[DVGM22] Desfontaines, Voss, Gipson, Mandayam. Differentially private partition selection. PoPETs 2022.
[GGK20] Gopi, Gulhane, Kulkarni, Shen, Shokouhi, Yekhanin. Differentially private set union. ICML 2020.
[BW18] Balle, Wang. Improving the Gaussian mechanism for differential privacy. ICML 2018.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.purse.open_threshold import Floats, fewest_users
from dp_transforms.accounting.purse.purse_choice import DEFAULT_MOST_LOOKS
from dp_transforms.accounting.purse.purse_search import HIT_SHARE
from dp_transforms.checks import LARGEST_WHOLE, check_fraction, check_whole
from dp_transforms.plan.calibration import DEFAULT_MAX_ITEMS_PER_USER
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import Looks

_CAP_RATIO = 1.3  # from one cap that is tried to the next; then closer around the best
_CLOSER = 1.05
_HALVINGS = 60  # of 12 powers of ten: down to 1e-16 of sigma
LOOKS = (1, 10, 100, 1000)  # pairs (window, item) of each holder in the whole run
FOUND = 0.95
# Keys of the methods in JSON, and what tables and pictures call them.
LOOKS_NEW, LOOKS_KNOWN = "looks", "looks_known"
LOOKS_AND_HITS, LOOKS_ALONE = "looks_and_hits", "looks_alone"  # the other of the two for a `LooksPlan`
HITS_TO_COMPARE = 10
TITLES = {
    LOOKS_NEW: "looks, new item",
    LOOKS_KNOWN: "looks, known item",
    LOOKS_AND_HITS: f"looks and {HITS_TO_COMPARE} hits",
    LOOKS_ALONE: "looks alone",
    "hits": "hits",
    "hits-with-counts": "hits-with-counts",
    "kms21": "kms21",
    "pipelinedp": "PipelineDP, best cap",
    "weighted_gaussian": "weighted Gaussian",
    "gaussian_histograms": "Gaussian histograms",
}
FoundFrom = dict[str, dict[int, int]]
_Users = Callable[[int], int]


class BestCap(NamedTuple):
    """users: that an item needs. cap: pairs of a user that count. strategy: of the two of the library, the better."""

    users: int
    cap: int
    strategy: str


def partition_selection_found_from(epsilon: float, delta: float, looks: int, probability: float = 0.95) -> BestCap:
    """The best cap, and the better of truncated geometric and Gaussian selection."""
    check_whole("looks", looks, 1)
    check_fraction("probability", probability)

    def tried(caps: set[int]) -> BestCap:
        return min(
            BestCap(fewest_users(found, cap / looks, probability), cap, strategy)
            for cap in sorted(caps)
            for strategy, found in (
                ("truncated geometric", TruncatedGeometric(epsilon, delta, cap)),
                ("Gaussian", GaussianSelection(epsilon, delta, cap)),
            )
        )

    best = tried(_geometric(1, looks, _CAP_RATIO))
    around = _geometric(max(1, int(best.cap / _CAP_RATIO)), min(looks, math.ceil(best.cap * _CAP_RATIO)), _CLOSER)
    return min(best, tried(around))


def weighted_gaussian_found_from(
    epsilon: float, delta: float, looks: int, most_looks: int, probability: float = 0.95
) -> int:
    """[GGK20] section 5: half of delta for the noise, half for the threshold. most_looks: their Delta_0."""
    check_whole("looks", looks, 1)
    check_fraction("probability", probability)
    sigma = gaussian_sigma(epsilon, delta / 2)
    threshold = weighted_gaussian_threshold(epsilon, delta, most_looks)
    weight = 1 / math.sqrt(min(looks, most_looks))

    def found(users: npt.NDArray[np.int64]) -> Floats:
        return _normal_tail(threshold - users * weight, sigma)

    return fewest_users(found, min(1.0, most_looks / looks), probability)


def weighted_gaussian_threshold(epsilon: float, delta: float, most_looks: int) -> float:
    """``max over t <= most_looks of 1/sqrt(t) + sigma Phi^-1((1 - delta/2)^(1/t))`` ([GGK20], Theorem 5.1)."""
    from scipy.special import ndtri

    pairs = np.arange(1, check_whole("most_looks", most_looks, 1) + 1)
    missed = -np.expm1(np.log1p(-delta / 2) / pairs)  # 1 - (1 - delta/2)^(1/t), with all its digits
    return float(np.max(1 / np.sqrt(pairs) - gaussian_sigma(epsilon, delta / 2) * ndtri(missed)))


def gaussian_histograms_found_from(epsilon: float, delta: float, counts: int, probability: float = 0.95) -> int:
    """Half of delta for the noise, half for the threshold. counts: items a window that count, times windows.

    One user changes at most so many counts by 1 each. The threshold is the smallest T with
    ``counts Pr[1 + noise >= T] <= delta / 2``.
    """
    from scipy.special import ndtri

    check_whole("counts", counts, 1)
    check_fraction("probability", probability)
    sigma = gaussian_sigma(epsilon, delta / 2) * math.sqrt(counts)
    threshold = 1 + math.ceil(-sigma * float(ndtri(delta / 2 / counts)))
    return math.ceil(threshold + sigma * float(ndtri(probability)))


class TruncatedGeometric:
    """Keeps a partition of k users with probability pi(k) ([DVGM22], Theorem 1), the largest that its privacy allows.

    epsilon / cap and 1 - (1 - delta)^(1 / cap) for each partition.
    """

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        self._epsilon = epsilon / cap
        self._delta = -math.expm1(math.log1p(-delta) / cap)
        self._crossing = 1 + math.floor(
            math.log1p(math.tanh(self._epsilon / 2) * (1 / self._delta - 1)) / self._epsilon
        )

    def __call__(self, users: npt.NDArray[np.int64]) -> Floats:
        near = np.minimum(users, self._crossing)
        step = math.expm1(self._epsilon)
        rising = np.expm1(near * self._epsilon) / step * self._delta
        # Beyond the crossing the complement falls by e^-epsilon and delta at each step, down to 0.
        beyond = np.expm1(-(users - near) * self._epsilon) * (1 - rising + self._delta / step)
        return np.asarray(np.minimum(1.0, rising - beyond), dtype=np.float64)


class GaussianSelection:
    """Keeps a partition whose number of users and Gaussian noise pass a threshold: half of delta for each."""

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        from scipy.special import ndtri

        self.sigma = gaussian_sigma(epsilon, delta / 2) * math.sqrt(cap)
        self.threshold = 1 - self.sigma * float(ndtri(-math.expm1(math.log1p(-delta / 2) / cap)))

    def __call__(self, users: npt.NDArray[np.int64]) -> Floats:
        return _normal_tail(self.threshold - users, self.sigma)


@functools.lru_cache(maxsize=16)
def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The least noise for a sensitivity of 1 ([BW18], Theorem 8); it grows with the sensitivity in proportion.

    (epsilon, delta)-DP where ``Phi(1/(2s) - epsilon s) - e^epsilon Phi(-1/(2s) - epsilon s) <= delta`` for s = sigma.
    """
    from scipy.special import log_ndtr, ndtr

    low, high = 1e-3, 1e9
    for _ in range(_HALVINGS):
        sigma = math.sqrt(low * high)
        near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        needed = float(ndtr(near)) - math.exp(epsilon + float(log_ndtr(far)))
        low, high = (low, sigma) if needed <= delta else (sigma, high)
    return high


def _normal_tail(margins: npt.NDArray[np.number], sigma: float) -> Floats:
    """``Pr[noise >= margin]`` of Gaussian noise."""
    from scipy.special import ndtr

    return np.asarray(ndtr(-margins / sigma), dtype=np.float64)


def _geometric(first: int, last: int, ratio: float) -> set[int]:
    steps = math.ceil(math.log(last / first) / math.log(ratio))
    return {first, last, *(round(value) for value in np.geomspace(first, last, steps + 1))}


def found_from(plan: Plan, looks: Iterable[int]) -> FoundFrom:
    """Method -> pairs of each holder -> users, for the mode of the plan alone."""
    return _table(_of_plan(plan), looks)


class Comparison:
    """The plan, and at the same budget, schedule and domain the other modes with their defaults and other methods.

    Beside a plan of mode `looks` stands the same with a price for hits, or without one: new items, while none of their
    users is excluded. A mode that the budget cannot pay for is left out; so are the other methods in a known domain,
    where theirs would not be these.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        methods: dict[str, _Users] = {}
        for mode in (LOOKS_NEW, "hits", "hits-with-counts"):
            of_mode = plan if plan.mode == mode else _in_mode(plan, mode)
            if of_mode is not None:
                methods |= _of_plan(of_mode)
        if plan.looks is not None:
            methods |= _with_other_hits(plan, plan.looks)
        self._methods = {**methods, **_of_plan(plan), **({} if plan.domain_size else _of_others(plan))}

    def found_from(self, looks: Iterable[int]) -> FoundFrom:
        """As the function of this name, for all methods, in the order of `TITLES`."""
        ordered = {key: self._methods[key] for key in TITLES if key in self._methods}
        return _table(ordered, looks)


def likely_hits(looks: int) -> int:
    """So many hits a user with these looks may have."""
    return math.ceil(HIT_SHARE * looks)


def as_json(found: FoundFrom) -> dict[str, dict[str, int]]:
    return {method: {str(looks): users for looks, users in row.items()} for method, row in found.items()}


def _table(methods: dict[str, _Users], looks: Iterable[int]) -> FoundFrom:
    activities = tuple(looks)
    return {method: {number: users(number) for number in activities} for method, users in methods.items()}


def _of_plan(plan: Plan) -> dict[str, _Users]:
    if plan.looks is None:
        return {plan.mode: lambda _: plan.smallest_detectable(FOUND)}
    new = functools.partial(plan.found_from, probability=FOUND)
    if plan.known is None and plan.rounds is None:
        return {LOOKS_NEW: new}
    return {LOOKS_NEW: new, LOOKS_KNOWN: functools.partial(plan.found_from, probability=FOUND, known=True)}


def _with_other_hits(plan: Plan, looks: Looks) -> dict[str, _Users]:
    """With hits if the plan has none, and without if it has; empty if the budget is too small, and for rounds."""
    if len(plan.units_of_rounds) > 1:
        return {}
    hits = 0 if plan.hits else min(HITS_TO_COMPARE, looks.most_looks)
    other = plan.again(
        usual_looks=looks.usual_looks,
        most_looks=looks.most_looks,
        hits_per_user=hits,
        known_error=plan.known_error if plan.domain_size else None,
    )
    return {} if other is None else {LOOKS_AND_HITS if hits else LOOKS_ALONE: _of_plan(other)[LOOKS_NEW]}


def _in_mode(plan: Plan, mode: str) -> Plan | None:
    """The same guarantee in another mode; None if the budget is too small for it."""
    if plan.looks is None and mode != LOOKS_NEW:
        return plan.again(mode, max_items_per_user=plan.charged_hits.max_items_per_user)
    return plan.again(mode)


def _of_others(plan: Plan) -> dict[str, _Users]:
    epsilon, delta = plan.epsilon, plan.delta
    most_looks = DEFAULT_MOST_LOOKS if plan.looks is None else plan.looks.most_looks
    items = plan.charged_hits.max_items_per_user if plan.looks is None else DEFAULT_MAX_ITEMS_PER_USER
    counts = min(items * plan.schedule.horizon, LARGEST_WHOLE)
    return {
        "pipelinedp": lambda looks: partition_selection_found_from(epsilon, delta, looks, FOUND).users,
        "weighted_gaussian": lambda looks: weighted_gaussian_found_from(epsilon, delta, looks, most_looks, FOUND),
        "gaussian_histograms": functools.cache(lambda _: gaussian_histograms_found_from(epsilon, delta, counts, FOUND)),
    }
