"""The records of a plan: each is one choice with all its numbers, and a choice that was not made has no record.

A record checks by itself what it can tell alone, when it is built or read. The module `check` checks how the records of
a plan fit together, and that the plan keeps its promise.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from typing import Protocol, runtime_checkable

from dp_transforms.accounting.accountants import check_delta
from dp_transforms.accounting.charged_hits import COUNTS, NAMES, PRINTED, NoiseParameters, proof_of, zone_width
from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant
from dp_transforms.accounting.price_list import PriceList
from dp_transforms.accounting.priced_weights import BUDGET_UNITS, FEWEST_STATED
from dp_transforms.checks import check_range, check_whole, shown
from dp_transforms.errors import InputError
from dp_transforms.plan.stored import Record
from dp_transforms.plan.window_schedule import WindowSchedule

MOST_HITS = 10_000  # of a user in all; an accountant pass over more takes minutes
MOST_CONTRIBUTIONS = 100_000  # prices for more take minutes
_LARGEST_EPSILON = 40.0  # beyond, the share of the sampled noise, which grows with e^epsilon, would show
_MOST_LEAST_USERS = 10**9  # thresholds of more would not fit into 63 bits
SMALLEST_ERROR = 1e-30  # of sizes and false names
MOST_ROUNDS = 5  # for each a state has a kind of user budgets


@runtime_checkable
class PublicList(Protocol):
    """What a plan needs of `PublicItems`: the number of its items, and the hash of the list."""

    @property
    def size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class DeclaredItems(Record):
    """The public items: of a plan without open ones a list of all that count.

    size: how many there are. fingerprint: the hex SHA-256 of the list.
    """

    size: int
    fingerprint: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("size", self.size, 1)
        if not re.fullmatch("[0-9a-f]{64}", self.fingerprint):
            raise ValueError("the fingerprint of public items must be the hex SHA-256 of their list.")

    @classmethod
    def of(cls, public_items: object) -> DeclaredItems | None:
        if public_items is None:
            return None
        if not isinstance(public_items, PublicList):
            got = type(public_items).__name__
            raise InputError("public_items", f"must be PublicItems, got a {got}.", "Use PublicItems.read(path).")
        return cls(public_items.size, public_items.fingerprint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(Record):
    """What a plan is calibrated for: the fields that every `Plan` begins with."""

    epsilon: float
    delta: float
    schedule: WindowSchedule
    public_items: DeclaredItems | None = None
    max_users: int
    max_items: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epsilon <= _LARGEST_EPSILON:
            wanted = f"> 0 and at most {_LARGEST_EPSILON:g}"
            raise InputError("epsilon", f"must be {wanted}, got {self.epsilon!r}.", "Usual values are 0.1 to 10.")
        check_delta(self.delta)
        check_whole("max_users", self.max_users, 1)
        check_whole("max_items", self.max_items, 1)

    @property
    def public_item_count(self) -> int:
        """How many public items there are; 0 without."""
        return 0 if self.public_items is None else self.public_items.size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares(Record):
    """How delta was split.

    paid: for what users pay for, contributions or charged results. open: for items with one holder alone; none if all
    items are public. sampling: for the distance of the sampled noise from its law. hash: for collisions of keyed
    hashes.
    """

    paid: float
    open: float | None = None
    sampling: float
    hash: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideNoise(Record):
    """The second noise of [KMS21] as printed: ``W + min(V, cap)`` in all, W of scale 1 / epsilon_per_query."""

    epsilon_per_query: float
    cap: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChargedHits(Record):
    """Users are charged for hits.

    publishes: ``names`` or ``counts``.
    per_user: charged results after which a user is excluded, under each key.
    max_items_per_user: distinct items of a user that count in one window (L), under each key.
    epsilon_per_query: the discrete Laplace noise of one count, V where it is as printed, has scale
        1 / epsilon_per_query.
    wide: of noise as printed alone.
    most_keys: the promise is for users with events under at most so many keys (docs/guarantee.md, "Keys"); left out: 1.
    """

    publishes: str
    per_user: int
    max_items_per_user: int
    epsilon_per_query: float
    wide: WideNoise | None = None
    most_keys: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most_keys == 1:
            raise ValueError("most_keys must be left out of the hits of a plan where it is 1.")
        check_hits(self.per_user, check_whole("most_keys", self.keys, 1))
        check_whole("max_items_per_user", self.max_items_per_user, 1)
        if self.publishes not in (NAMES, COUNTS):
            raise ValueError(f"publishes must be {NAMES} or {COUNTS}, got {shown(self.publishes)}.")
        if self.wide is not None and self.publishes == COUNTS:
            raise ValueError("wide must be left out of hits with counts: noise as printed is for names.")
        self.proof  # noqa: B018 - raises where the noise is none of this mode

    @property
    def mode(self) -> str:
        """As `accounting.charged_hits` calls it."""
        return self.publishes if self.wide is None else PRINTED

    @property
    def proof(self) -> GameAccountant | ThresholdMonitorAccountant:
        """What the charged results of a user cost, under all its keys."""
        return proof_of(self.mode, self.noise, self.in_all)

    @functools.cached_property
    def noise(self) -> NoiseParameters:
        """The noise of one count."""
        if self.wide is None:
            return NoiseParameters(self.epsilon_per_query)
        wide, cap = self.wide.epsilon_per_query, self.wide.cap
        return NoiseParameters(self.epsilon_per_query, wide_epsilon_per_query=wide, noise_cap=cap)

    @property
    def keys(self) -> int:
        """`most_keys`, 1 where it is left out."""
        return 1 if self.most_keys is None else self.most_keys

    @property
    def in_all(self) -> int:
        """A user has at most so many, under all its keys."""
        return self.keys * self.per_user

    @functools.cached_property
    def zone_width(self) -> int:
        """Integers in the charged zone ``threshold .. threshold + zone_width - 1``; 0 with counts or printed noise."""
        return zone_width(self.mode, self.epsilon_per_query)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaidContributions(Record):
    """Users pay for tests of their contributions, each out of a budget of its own.

    usual_tests: the noise was chosen for users with between so many contributions in the run; the guarantee is for all.
    shape, scale: the noise of one sum, an `ExponentialPower`.
    order, budget: the Renyi order, and the divergence of this order that a full budget stands for.
    weights, units: what a user may add to an item, rising, and what a test with each costs of a budget.
    spacing: distance of the boundaries of levels; level k is reached at threshold + (k - 1) spacing.
    size_error: the probability that any size that the run states is larger than the number of users.
    least_users: each name states at least so many users; None: it may state no number.

    Noise, thresholds and weights are in integers of one grid; they mean something only relative to each other.
    """

    usual_tests: tuple[int, int]
    shape: float
    scale: int
    order: float
    budget: float
    weights: tuple[int, ...]
    units: tuple[int, ...]
    spacing: int
    size_error: float
    least_users: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_listed(self)
        if self.usual_tests != usual_tests_of(self.usual_tests, self.most_tests):
            raise ValueError(f"usual_contributions must rise, got {shown(self.usual_tests)}.")
        check_range("size_error", self.size_error, SMALLEST_ERROR, 0.5)
        if self.least_users is not None:
            check_whole("least_users", self.least_users, FEWEST_STATED, _MOST_LEAST_USERS)

    @classmethod
    def of(
        cls, prices: PriceList, usual_tests: tuple[int, int], size_error: float, least_users: int | None = None
    ) -> PaidContributions:
        return cls(
            usual_tests=usual_tests,
            shape=prices.noise.shape,
            scale=prices.noise.scale,
            order=prices.order,
            budget=prices.budget,
            weights=prices.weights,
            units=prices.units,
            spacing=prices.spacing,
            size_error=size_error,
            least_users=least_users,
        )

    @functools.cached_property
    def noise(self) -> ExponentialPower:
        """The law of the noise of one sum."""
        return ExponentialPower(self.shape, self.scale)

    @functools.cached_property
    def prices(self) -> PriceList:
        """The price list; `check_plan` asks whether it charges enough."""
        return self.prices_of(self)

    def prices_of(self, tests: PaidContributions | LaterTests) -> PriceList:
        """The price list of the tests of another round, of the same order, budget and grid."""
        noise = ExponentialPower(tests.shape, self.scale)
        return PriceList(noise, self.order, self.budget, tests.weights, tests.units, tests.spacing)

    @property
    def most_tests(self) -> int:
        """A user budget pays for at most so many tests; a user's further ones do not count."""
        return self.prices.most_tests


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaterTests(Record):
    """The tests of a later round, with a shape of the noise and a price list of their own; fields, grid, order and
    budget as in `PaidContributions`."""

    shape: float
    weights: tuple[int, ...]
    units: tuple[int, ...]
    spacing: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_listed(self)


def _check_listed(tests: PaidContributions | LaterTests) -> None:
    """Raises ValueError for what is no price list, whatever it charges."""
    if not tests.weights or len(tests.weights) != len(tests.units):
        raise ValueError(f"weights and units must have one length, got {len(tests.weights)} and {len(tests.units)}.")
    for name, values in (("weights", tests.weights), ("units", tests.units)):
        if any(low >= high for low, high in itertools.pairwise(values)):
            raise ValueError(f"{name} must rise.")
    if tests.units[-1] > BUDGET_UNITS:
        raise ValueError(f"the largest weight must cost at most a user budget, {BUDGET_UNITS} units.")
    check_whole("spacing", tests.spacing, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Followed(Record):
    """Items that were named are followed: noisy sums of at least `threshold` name them again.

    forget_after: until they were not named for so many windows.
    """

    threshold: int
    forget_after: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("threshold", self.threshold, 1)
        check_whole("forget_after", self.forget_after, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounds(Record):
    """The tests of a replay come in rounds, in each part of a run: the first names items of blocks of windows, and each
    later one draws for all items in windows of these that are not named yet or left out. The last one tests what is
    named, too, for its size: the sizing round.

    block_seconds: a window is of the block in which it ends; the first block begins at the declared start.
    units: what the tests of a user in each round cost of a budget together, at most.
    false_names: on average noise alone names at most so many items in windows in each later round.
    later: the tests of each round but the first; left out where all have the noise and the prices of the first one.
    """

    block_seconds: int
    units: tuple[int, ...]
    false_names: float
    later: tuple[LaterTests, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("block_seconds", self.block_seconds, 1)
        if not 2 <= len(self.units) <= MOST_ROUNDS:
            raise ValueError(f"there must be 2 to {MOST_ROUNDS} rounds, got {len(self.units)}.")
        if sum(self.units) > BUDGET_UNITS:
            raise ValueError(f"the rounds must cost at most a user budget together, {BUDGET_UNITS} units.")
        if self.later is not None and len(self.later) != len(self.units) - 1:
            raise ValueError(f"later must be the tests of {len(self.units) - 1} rounds, got {len(self.later)}.")
        check_range("false_names", self.false_names, SMALLEST_ERROR, 1e6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecondTest(Record):
    """A stream tests each contribution twice, in its window: first with a small part of the budget; and once more with
    the rest, if the first test neither named the item nor left it out.

    units: what all first tests of a user, and all second ones, cost of a budget at most.
    """

    units: tuple[int, int]

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.units) > BUDGET_UNITS:
            raise ValueError(f"both tests must cost at most a user budget together, {BUDGET_UNITS} units.")


def check_hits(hits: int, most_keys: int) -> None:
    """Raises ValueError unless the accountants can follow this many hits of a user under each of so many keys."""
    check_whole("hits_per_user", hits, 1)
    if most_keys * hits > MOST_HITS:
        name, got = ("hits_per_user", hits) if most_keys == 1 else ("most_keys * hits_per_user", most_keys * hits)
        raise InputError(name, f"must be at most {MOST_HITS}, got {got}.")


def usual_tests_of(pair: object, most_tests: int) -> tuple[int, int]:
    """The usual contributions of a user in the run, the smaller number first. Raises ValueError."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InputError("usual_contributions", f"must be a pair such as (1, 1000), got {shown(pair)}.")
    first, last = sorted(check_whole("each of usual_contributions", number, 1, most_tests) for number in pair)
    return first, last
