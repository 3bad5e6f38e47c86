"""Example 1.4 of [KMS21], shrunk: why to charge users and not the stream.

Every user belongs to one small, one medium and one large group. Once in the stream all members of a group hold the same
item, at a time of the group's own; otherwise users hold items that nobody else holds. So there are many heavy items,
but each user holds only three. Run it: ``python examples/shifting_groups.py``.

The sparse vector technique halts after a fixed number of heavy items in total, and pays for each: to see them all it
needs a threshold far above all groups, and with a threshold that fits the large groups it sees only these. Mechanisms
that charge users pay for three, however long the stream is. The monitor of [KMS21] does too, but with constants so
large that it is ahead only in streams of some hundred thousand heavy items. All mechanisms get the same (epsilon,
delta), for one user over the whole stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.charged_hits import solve_target_charging
from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant, calibrate_threshold_monitor
from dp_transforms.papers.individual_charging import IndividualCharging
from dp_transforms.papers.noise_source import NoiseSource, SecretNoise
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.sparse_vector import Sparse
from dp_transforms.papers.threshold_monitor import ThresholdMonitor, ThresholdMonitorEvolving

EPSILON, DELTA, BETA = 1.0, 1e-6, 1e-3
HELD_PER_USER = 3  # k*: heavy items that one user ever holds
USERS = 21_600
GROUPS = {"A": 36, "B": 12, "C": 4}  # of 600, 1,800 and 5,400 users
LONELY_ITEMS = 200  # that are tested too, each held by one user
CROWD = 2_000  # users in the place of each one, in the last row


class Step(NamedTuple):
    """One item that is tested. group: None if nobody but one user holds it. members: bool[USERS]."""

    group: str | None
    members: npt.NDArray[np.bool_]


class Row(NamedTuple):
    """What one mechanism finds. sure: groups from this size on are found except with probability BETA."""

    mechanism: str
    threshold: float
    sure: float
    found: dict[str, int]
    false: int


def make_stream() -> list[Step]:
    """Groups cut across each other, and come in an order that mixes their kinds and the lonely items."""
    users = np.arange(USERS)
    steps = []
    for group, count in GROUPS.items():
        place = users * {"A": 1, "B": 7, "C": 11}[group] % USERS  # coprime to USERS: a permutation
        steps += [Step(group, place * count // USERS == index) for index in range(count)]
    steps += [Step(None, users == user) for user in range(0, USERS, USERS // LONELY_ITEMS)][:LONELY_ITEMS]
    return [steps[index] for index in np.arange(len(steps)) * 101 % len(steps)]  # 101 is coprime to 252


def make_charging(users: int, noise: NoiseSource | None = None, hits: int = HELD_PER_USER) -> IndividualCharging:
    epsilon_per_query = solve_target_charging(
        lambda each: GameAccountant(each, not_prior_probability(each), hits).delta(EPSILON), hits, EPSILON, DELTA
    )
    return IndividualCharging(users, hits=hits, epsilon_per_query=epsilon_per_query, noise=noise)


def make_sparse(data: object, tops: int, threshold: float, noise: NoiseSource | None = None) -> Sparse:
    """With delta or without, whichever needs the lower threshold."""
    both = [
        Sparse(data, epsilon=EPSILON, delta=delta, threshold=threshold, cutoff=tops, noise=noise)
        for delta in (0.0, DELTA)
    ]
    return min(both, key=lambda sparse: sparse.accuracy(10 * tops, BETA))


def monitor_numbers(noise: ThresholdMonitorAccountant) -> dict[str, float]:
    return {
        "hits": noise.hits,
        "wide_epsilon": noise.wide_epsilon,
        "narrow_epsilon": noise.narrow_epsilon,
        "cap": noise.cap,
    }


def run(mechanism: str, threshold: float, alpha: float, stream: list[Step], ask: Callable[[Step], bool | None]) -> Row:
    """ask: whether the item is reported; None once the mechanism has halted."""
    found = dict.fromkeys(GROUPS, 0)
    false = 0
    for step in stream:
        if ask(step):
            if step.group is None:
                false += 1
            else:
                found[step.group] += 1
    return Row(mechanism, threshold, threshold + alpha, found, false)


def find_groups(noise: NoiseSource | None = None) -> list[Row]:
    """The stream, seen by each mechanism with the lowest threshold that keeps lonely items out."""
    noise = SecretNoise() if noise is None else noise
    stream = make_stream()
    queries, everybody, sizes = len(stream), np.ones(USERS, dtype=np.int64), [USERS // n for n in GROUPS.values()]
    rows = []

    charging = make_charging(USERS, noise)
    alpha = charging.accuracy(queries, BETA)
    threshold = 2 + alpha
    rows.append(
        run(
            f"individual charging, {HELD_PER_USER} hits",
            threshold,
            alpha,
            stream,
            lambda step: charging.ask(LinearQuery(step.members), threshold) is not None,
        )
    )

    # Sparse for all groups, for those from B on, and for C alone: smaller ones must stay below the threshold then.
    for start, below in ((0, 1), (1, sizes[0]), (2, sizes[1])):
        tops = sum([*GROUPS.values()][start:])
        alpha = make_sparse(everybody, tops, 0).accuracy(queries, BETA)
        sparse = make_sparse(everybody, tops, below + 1 + alpha, noise)
        rows.append(
            run(
                f"Sparse, halts after {tops}",
                below + 1 + alpha,
                alpha,
                stream,
                lambda step, sparse=sparse: None if sparse.halted else sparse.ask(LinearQuery(step.members)),
            )
        )

    numbers = monitor_numbers(calibrate_threshold_monitor(EPSILON, DELTA, HELD_PER_USER))
    alpha = ThresholdMonitorEvolving(1, threshold=0, **numbers).accuracy(queries, BETA)
    evolving = ThresholdMonitorEvolving(USERS, threshold=2 + alpha, noise=noise, **numbers)
    crowd = ThresholdMonitor(everybody * CROWD, threshold=CROWD + 1 + alpha, noise=noise, **numbers)
    for name, monitor, least in (
        ("ThresholdMonitorEvolving", evolving, 1),
        (f"ThresholdMonitor, {CROWD:,} times the users", crowd, CROWD),
    ):
        rows.append(
            run(
                f"{name}, {HELD_PER_USER} hits",
                least + 1 + alpha,
                alpha,
                stream,
                lambda step, monitor=monitor: monitor.ask(LinearQuery(step.members)),
            )
        )
    return rows


def errors_of_longer_streams(lengths: tuple[int, ...] = (52, 1_000, 100_000, 10_000_000)) -> list[tuple[float, ...]]:
    """The error alpha of charging, Sparse and the monitor for `heavy` heavy items; each user holds three."""
    numbers = monitor_numbers(calibrate_threshold_monitor(EPSILON, DELTA, HELD_PER_USER))
    return [
        (
            heavy,
            make_charging(1).accuracy(10 * heavy, BETA),
            make_sparse([0], heavy, 0).accuracy(10 * heavy, BETA),
            ThresholdMonitorEvolving(1, threshold=0, **numbers).accuracy(10 * heavy, BETA),
        )
        for heavy in lengths
    ]


def errors_of_heavier_users(
    holdings: tuple[int, ...] = (1, 3, 10, 30, 100, 300), heavy: int = 100_000
) -> list[tuple[float, ...]]:
    """The same three errors for `held` heavy items of one user, out of `heavy` in the stream."""
    rows = []
    for held in holdings:
        numbers = monitor_numbers(calibrate_threshold_monitor(EPSILON, DELTA, held))
        rows.append(
            (
                held,
                make_charging(1, hits=held).accuracy(10 * heavy, BETA),
                make_sparse([0], heavy, 0).accuracy(10 * heavy, BETA),
                ThresholdMonitorEvolving(1, threshold=0, **numbers).accuracy(10 * heavy, BETA),
            )
        )
    return rows


def main() -> None:
    sizes = ", ".join(f"{count} {group} of {USERS // count:,}" for group, count in GROUPS.items())
    print(f"{USERS:,} users, each in one group of each kind: {sizes}. {LONELY_ITEMS} items held by one user.")
    print(f"({EPSILON:g}, {DELTA:g})-DP for one user over the whole stream.\n")
    print(f"{'mechanism':50}{'threshold':>11}{'finds from':>12}   A found   B found   C found   false")
    for row in find_groups():
        counts = "".join(f"{row.found[group]:>7} of{count:>3}"[-10:] for group, count in GROUPS.items())
        print(f"{row.mechanism:50}{row.threshold:>11,.0f}{row.sure:>12,.0f}{counts}{row.false:>8}")
    heading = f"{'individual charging':>22}{'Sparse':>14}{'ThresholdMonitorEvolving':>27}"
    print("\nThe error when the stream grows and every user still holds three heavy items:\n")
    print(f"{'heavy items':>12}{heading}")
    for heavy, charging, sparse, monitor in errors_of_longer_streams():
        print(f"{heavy:>12,}{charging:>22,.0f}{sparse:>14,.0f}{monitor:>27,.0f}")
    print("\nThe error when one user holds more and more of 100,000 heavy items:\n")
    print(f"{'held':>12}{heading}")
    for held, charging, sparse, monitor in errors_of_heavier_users():
        print(f"{held:>12,}{charging:>22,.0f}{sparse:>14,.0f}{monitor:>27,.0f}")


if __name__ == "__main__":
    main()
