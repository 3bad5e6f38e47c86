"""Runs the real monitor on many copies of a stream, and holds what it publishes against the exact law.

Each copy has an item, a user x' and other holders of its own, so their draws are independent. The threshold is small,
and the counts are shifted with it: only their difference matters. This difference, the noise, the zone and the hits are
those of the plan.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from dp_transforms.audit.hits import Mechanism, ThresholdLaw, laplace_mass
from dp_transforms.audit.noise_law import Values, Whole
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.window_report import ABOVE, HeavyHitter
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.audit.copies import FIRST_OTHER
from tests.audit.statistics import NamedPValue, binomial_p_value, multinomial_p_value
from tests.helpers.attack_streams import AttackStream, Steps, is_up, law_of
from tests.helpers.core_runs import close_window
from tests.helpers.trial_plan import TrialPlan

VALUE_REACH = 2048  # published values up to this far from the count have a bin of their own


@dataclasses.dataclass
class Observed:
    """How often each end was seen, int64[hits + 1, levels] as in `StreamLaw`; and each published value.

    values: by distance, int64[2 * VALUE_REACH + 1]: value minus the count without the user, 0 in the middle; values
    further out are counted at the ends.
    excluded: copies in which the user was excluded, and given one more item. excluded_published: those of them in which
    that item was published.
    """

    ends: Whole
    values: dict[int, Whole]
    excluded: int
    excluded_published: int


def p_values(mechanism: Mechanism, stream: AttackStream, observed: Mapping[bool, Observed]) -> Iterator[NamedPValue]:
    """As many tests whatever was seen. observed: by whether the user is there."""
    stream_law, law = law_of(mechanism, stream), mechanism.law
    # An excluded user must not count: in both worlds the item is published as if the user were not there.
    ups = [result for result in law.results(stream.distance) if is_up(result)]
    published = math.fsum(result.without_user for result in ups)
    for with_user, of_world in observed.items():
        ends = stream_law.with_user if with_user else stream_law.without_user
        yield f"ends, {with_user}", multinomial_p_value(of_world.ends, ends)
        yield f"excluded, {with_user}", binomial_p_value(of_world.excluded_published, of_world.excluded, published)
        for distance in stream.distances:
            counts = of_world.values.get(distance)
            masses = value_masses(law, distance, VALUE_REACH, with_user)
            yield f"values, {with_user}", 1.0 if counts is None else multinomial_p_value(counts, masses)


def value_masses(law: ThresholdLaw, distance: int, reach: int, with_user: bool) -> Values:
    """Probabilities of the values that are published, relative to the count without the user: float[2 reach + 1].

    The two ends include all values further out. The sum is the probability that any value is published.
    """
    lowest, highest = -distance, law.zone_width - 1 - distance if law.zone_width else None
    masses = []
    for offset in range(-reach, reach + 1):
        first = lowest if offset == -reach else max(lowest, offset)
        last = highest if offset == reach else min(offset, offset if highest is None else highest)
        masses.append(laplace_mass(law.epsilon_per_query, first, last, int(with_user)))
    return np.array(masses)


def run_stream(
    mechanism: Mechanism, stream: AttackStream, run: TrialPlan, copies: int, secret: bytes, *, with_user: bool
) -> Observed:
    """Runs so many copies through the real code, window by window, with the smallest threshold at which every item has
    another holder."""
    trial = TrialPlan.of(
        run,
        run_id=f"{run.run_id}, {with_user}",
        threshold=max(1, 1 - min(stream.distances)),
        schedule=WindowSchedule.fixed(0, stream.rounds + 1, 1),
    )
    keys = trial.stream_keys(secret)
    table = ItemTable.of_labels(pa.array([f"copy {n}" for n in range(copies)]), keys.hash_items)[0]
    adversaries = _Adversaries(mechanism, stream, trial.threshold, table, with_user)
    running, state = HeavyHitterMonitor(trial, keys), MonitorState()
    for window in range(stream.rounds + 1):
        report = close_window(running, window, find_candidates(adversaries.cells(window), trial, keys), state)
        adversaries.read([] if report is None else report.heavy_hitters)
    return adversaries.observed()


class _Adversaries:
    """The adversary of each copy: what it has seen, and what it puts into the next window.

    It plays until the user is excluded or the rounds are over, and one more window after an exclusion.
    """

    def __init__(
        self, mechanism: Mechanism, stream: AttackStream, threshold: int, table: ItemTable, with_user: bool
    ) -> None:
        self._stream, self._size = stream, Steps.of_law(mechanism.law, stream.distances).size
        self._hits, self._threshold, self._with_user = mechanism.hits_per_user, threshold, with_user
        self._table = table
        self._copy_of = {label: copy for copy, label in enumerate(table.labels.to_pylist())}
        self._paid, self._level, self._distances = np.zeros((3, len(table)), dtype=np.int64)
        self._is_playing, self._is_done = np.zeros((2, len(table)), dtype=np.bool_)
        self._values: dict[int, Whole] = {}
        self._excluded_published = 0

    def cells(self, window: int) -> ItemHolders:
        """One item for each copy that still plays."""
        is_excluded = self._paid == self._hits
        self._is_playing = ~self._is_done & (is_excluded | (window < self._stream.rounds))
        is_late = self._stream.is_late(self._size * self._level) & ~is_excluded
        self._distances = np.where(is_late, self._stream.later_distance, self._stream.distance)
        copies = np.flatnonzero(self._is_playing)
        counts = self._threshold + self._distances[copies] + self._with_user
        splits = np.concatenate([[0], np.cumsum(counts)])
        holders = np.arange(splits[-1]) + (window + 1) * FIRST_OTHER
        if self._with_user:
            holders[splits[:-1]] = copies
        return ItemHolders(np.full(len(copies), window), copies, counts, holders.astype(np.uint64), self._table)

    def read(self, published: Sequence[HeavyHitter]) -> None:
        """Updates each copy with what was published of it."""
        is_excluded = self._paid == self._hits
        moves = np.where(self._is_playing & ~is_excluded, -1, 0)  # nothing published: likelier without the user
        charges = np.zeros_like(moves)
        for found in published:
            copy = self._copy_of[found.item]
            if is_excluded[copy]:
                self._excluded_published += 1
                continue
            charges[copy] = found.zone != ABOVE
            moves[copy] = 1 if found.noisy_count is None else self._read_value(copy, found.noisy_count)
        self._level += moves
        self._paid += charges
        self._is_done |= self._is_playing & is_excluded

    def _read_value(self, copy: int, noisy_count: int) -> int:
        """Counts the value, and says how it moves the level."""
        distance = int(self._distances[copy])
        offset = noisy_count - self._threshold - distance
        counts = self._values.setdefault(distance, np.zeros(2 * VALUE_REACH + 1, dtype=np.int64))
        counts[min(max(offset, -VALUE_REACH), VALUE_REACH) + VALUE_REACH] += 1
        return 1 if offset > 0 else -1

    def observed(self) -> Observed:
        rounds = self._stream.rounds
        ends = np.zeros((self._hits + 1, 2 * rounds + 1), dtype=np.int64)
        np.add.at(ends, (self._paid, self._level + rounds), 1)
        return Observed(ends, self._values, int(self._is_done.sum()), self._excluded_published)
