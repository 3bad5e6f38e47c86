"""Counters of users against dicts: single rules, and random steps for those of the mechanisms and the pipeline."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.threshold_monitor import UserCounters
from dp_transforms.monitor.user_budgets import UserBudgets

STEPS = 20_000  # of each machine below, at least
_RULES, _STEPS_IN_A_RULE = 20, 250


# ---------------------------------------------------------------------------------------------------------------------
# One rule at a time
# ---------------------------------------------------------------------------------------------------------------------


def test_a_user_pays_until_the_limit_and_is_removed_for_ever() -> None:
    counters = UserCounters(3, limit=4)
    for _ in range(3):
        counters.charge(np.array([3, 1, 0]))
    assert counters.paid().tolist() == [6, 3, 0], "the last payment may pass the limit; then there is none"
    assert counters.active().tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("users", "limit"), [(0, 1), (-1, 1), (2.0, 1), (True, 1), (1, 0), (1, True), (1, 2**61), (2**41, 1)]
)
def test_sizes_out_of_range_are_refused(users: int, limit: int) -> None:
    with pytest.raises(ValueError, match="must be a whole number in"):
        UserCounters(users, limit)


@pytest.mark.parametrize("amounts", [np.array([1]), np.array([1, -1]), np.array([[1, 1]])])
def test_charges_that_are_none_are_refused(amounts: np.ndarray) -> None:
    with pytest.raises(ValueError, match="one for each of 2 users"):
        UserCounters(2, 1).charge(amounts)


def test_queries_of_another_shape_or_grid_are_refused() -> None:
    counters = UserCounters(2, 1)
    counters.check_query(LinearQuery([1, 4], grid=4), 4)
    with pytest.raises(ValueError, match="must have grid 4"):
        counters.check_query(LinearQuery([1, 1], grid=2), 4)
    with pytest.raises(ValueError, match="for each of 2 users, got 3"):
        counters.check_query(LinearQuery([1, 1, 1], grid=4), 4)


# ---------------------------------------------------------------------------------------------------------------------
# Random histories. A machine's step is one charge of a handful of users; each rule does a batch of them.
# ---------------------------------------------------------------------------------------------------------------------


class _Counted(RuleBasedStateMachine):
    steps = 0

    def batch(self, seed: int) -> list[random.Random]:
        generator = random.Random(seed)
        type(self).steps += _STEPS_IN_A_RULE
        return [generator] * _STEPS_IN_A_RULE


class CountersMachine(_Counted):
    """`UserCounters` against a dict of integers."""

    @initialize(users=st.integers(1, 6), limit=st.sampled_from([1, 2, 50, 2000, 10**6]))
    def begin(self, users: int, limit: int) -> None:
        self.users, self.limit = users, limit
        self.counters = self.make(users, limit)
        self.paid: dict[int, int] = {}

    def make(self, users: int, limit: int) -> UserCounters:
        return UserCounters(users, limit)

    @rule(seed=st.integers(0, 2**32), largest=st.sampled_from([1, 3, 1000]))
    def charge(self, seed: int, largest: int) -> None:
        for generator in self.batch(seed):
            if all(self.paid.get(user, 0) >= self.limit for user in range(self.users)):
                self.is_as_the_dict_says()
                # Nothing more can happen to these: others take their place, so that every step changes something.
                self.begin(generator.randint(1, 6), generator.choice([1, 5, 300, 10**5, 10**7]))
            amounts = [generator.randint(0, largest) for _ in range(self.users)]
            amounts[generator.randrange(self.users)] += 1
            self.counters.charge(np.array(amounts))
            for user, amount in enumerate(amounts):
                if self.paid.get(user, 0) < self.limit:
                    self.paid[user] = self.paid.get(user, 0) + amount

    @rule(hits=st.integers(0, 1))
    def charge_everybody(self, hits: int) -> None:
        self.counters.charge(np.full(self.users, hits))
        for user in range(self.users):
            if self.paid.get(user, 0) < self.limit:
                self.paid[user] = self.paid.get(user, 0) + hits

    @invariant()
    def is_as_the_dict_says(self) -> None:
        expected = [self.paid.get(user, 0) for user in range(self.users)]
        assert self.counters.paid().tolist() == expected
        assert self.counters.active().tolist() == [paid < self.limit for paid in expected]


class BudgetsMachine(_Counted):
    """`UserBudgets` against a dict: charged in place, or by blobs that are appended and read in any order."""

    @initialize()
    def begin(self) -> None:
        self.budgets = UserBudgets()
        self.paid: dict[int, int] = {}

    def charges(self, generator: random.Random) -> tuple[np.ndarray, np.ndarray]:
        pool = [0, 1, 2, 5, 2**32, 2**63 - 1, 2**63, 2**64 - 1, *range(100, 140)]
        users = sorted(generator.sample(pool, generator.randint(0, 5)))
        hits = [generator.randint(1, 3) for _ in users]
        for user, hit in zip(users, hits, strict=True):
            self.paid[user] = self.paid.get(user, 0) + hit
        return np.array(users, dtype=np.uint64), np.array(hits, dtype=np.uint32)

    @rule(seed=st.integers(0, 2**32))
    def charge(self, seed: int) -> None:
        for generator in self.batch(seed):
            self.budgets.charge(*self.charges(generator))

    @rule(seed=st.integers(0, 2**32), whole=st.booleans())
    def charge_by_blobs(self, seed: int, whole: bool) -> None:
        blobs = self.budgets.to_blobs()
        for generator in self.batch(seed):
            budgets = UserBudgets(blobs, are_noted=True)
            budgets.charge(*self.charges(generator))
            blobs += budgets.charged_blobs()
        random.Random(seed).shuffle(blobs)
        self.budgets = UserBudgets(blobs)
        if whole:
            self.budgets = UserBudgets(self.budgets.to_blobs())

    @invariant()
    def is_as_the_dict_says(self) -> None:
        users = np.array([*self.paid, 3, 2**62], dtype=np.uint64)
        assert self.budgets.hits(users).tolist() == [*self.paid.values(), 0, 0]
        assert len(self.budgets) == len(self.paid)


_SETTINGS = settings(
    max_examples=12,
    stateful_step_count=_RULES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # no shrinking: a failure names its seed, and a batch does not get much shorter
)


@pytest.mark.parametrize(("machine", "examples"), [(CountersMachine, 12), (BudgetsMachine, 7)])
def test_counters_agree_with_integers_over_many_steps(machine: type[_Counted], examples: int) -> None:
    machine.steps = 0
    run_state_machine_as_test(machine, settings=settings(_SETTINGS, max_examples=examples))
    assert machine.steps >= STEPS


def test_the_machine_finds_counters_that_pay_on_after_the_limit() -> None:
    class PaysOn(UserCounters):
        def charge(self, amounts: np.ndarray) -> None:
            self._paid += amounts

    class Machine(CountersMachine):
        def make(self, users: int, limit: int) -> UserCounters:
            return PaysOn(users, limit)

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=_SETTINGS)
