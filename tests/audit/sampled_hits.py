"""Runs the real monitor many times on a stream and on its neighbour: a lower bound on epsilon, and a test of its noise.

Many independent copies run at once. Each has an item, a user x' and other holders of its own, so their draws are
independent. The threshold is small, and the counts are shifted with it: only their difference matters. This difference,
the noise, the zone and the hits are those of the plan. The exact law decides the stream, the event and the bins, all
before anything is drawn.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from dp_transforms.audit.look_law import Values, Whole
from dp_transforms.audit.mechanism import HitsClaim, Mechanism
from dp_transforms.audit.query_law import ThresholdLaw, laplace_mass
from dp_transforms.audit.streams import AttackStream, Steps, StreamLaw, is_up, law_of, worst_stream
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.monitor.window_report import ABOVE, HeavyHitter
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.audit.copies import FIRST_OTHER
from tests.audit.statistics import (
    Design,
    NamedPValue,
    SampledAudit,
    binomial_p_value,
    expected_bound,
    judge,
    multinomial_p_value,
)
from tests.helpers.trial_plan import TrialPlan

_COPIES_AT_ONCE = 2_500
_SWITCHES = 8  # values of epsilon tried for the change of distance; the best one is taken
VALUE_REACH = 2048  # published values up to this far from the count have a bin of their own


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamDesign(Design):
    """stream: of the direction in which the user is removed. event_loss: the event is a privacy loss of at least this
    at the end; it is likelier without the user."""

    stream: AttackStream
    law: StreamLaw
    event_loss: float

    @property
    def hits_per_user(self) -> int:
        """After so many hits the user should not count any more."""
        return len(self.law.with_user) - 1


def design_sampling(mechanism: Mechanism, claim: HitsClaim, runs: int, rounds: int) -> StreamDesign:
    """The stream and the event for which `runs` runs can be expected to show the largest epsilon."""
    rounds = min(rounds, mechanism.horizon)  # more windows than those of the plan would show more than the plan does
    unlimited = dataclasses.replace(mechanism, horizon=rounds)
    streams = [AttackStream.static(False, mechanism.law.near, rounds)]
    if mechanism.law.far is not None:
        reference = law_of(unlimited, worst_stream(unlimited, 0.0, rounds, False))
        largest = reference.epsilon(1 / runs, False)
        switches = [largest * part / (_SWITCHES - 1) for part in range(_SWITCHES)]
        streams = [worst_stream(unlimited, epsilon, rounds, False) for epsilon in switches]
    designs = [design for stream in streams for design in _events(stream, law_of(unlimited, stream), runs, claim.delta)]
    return max(designs, key=lambda design: design.expected_epsilon)


def _events(stream: AttackStream, law: StreamLaw, runs: int, delta: float) -> Iterator[StreamDesign]:
    losses = -law.log_ratio.reshape(-1)
    order = np.argsort(-losses, kind="stable")
    p, q = np.cumsum(law.without_user.reshape(-1)[order]), np.cumsum(law.with_user.reshape(-1)[order])
    ordered = losses[order]
    last_of_equal = np.flatnonzero(np.append(np.diff(ordered) < -1e-9 * np.abs(ordered[1:]), True))
    design = functools.partial(StreamDesign, stream=stream, law=law, runs=runs)
    for at in last_of_equal[ordered[last_of_equal] > 0]:
        event = (float(p[at]), float(q[at]))
        if (bound := expected_bound(runs, *event, delta)) is not None:
            loss = float(ordered[at]) * (1 - 1e-9)
            yield design(event_loss=loss, p=event[0], q=event[1], expected_epsilon=bound)
    yield design(event_loss=-math.inf, p=1.0, q=1.0, expected_epsilon=0.0)  # a certain event shows nothing


def sample_stream(
    mechanism: Mechanism,
    claim: HitsClaim,
    run: PlannedRun | TrialPlan,
    design: StreamDesign,
    secret: bytes,
    on_step: Callable[[str, float], None] = lambda text, share: None,
    monitor: type[HeavyHitterMonitor] = HeavyHitterMonitor,
) -> SampledAudit[StreamDesign]:
    """Runs the design in both worlds. run: a real one. secret: fresh, at least 32 bytes."""
    seen: dict[bool, Observed] = {}
    for low in range(0, design.runs, _COPIES_AT_ONCE):
        copies = min(_COPIES_AT_ONCE, design.runs - low)
        for with_user in (False, True):
            on_step(f"sampled: {design.runs:,} runs in each world", low / design.runs)
            trial = trial_of_stream(run, design.stream, f"{run.run_id}, copies from {low}, {with_user}")
            part = run_stream(design, mechanism.law, trial, copies, secret, with_user=with_user, monitor=monitor)
            seen[with_user] = seen[with_user] + part if low else part
    return judge_stream(design, mechanism.law, claim, seen)


def judge_stream(
    design: StreamDesign, law: ThresholdLaw, claim: HitsClaim, observed: Mapping[bool, Observed]
) -> SampledAudit[StreamDesign]:
    """The bound and the tests, from what both worlds showed."""
    in_event = -design.law.log_ratio >= design.event_loss
    p_seen, q_seen = (int(observed[with_user].ends[in_event].sum()) for with_user in (False, True))
    return judge(design, claim, p_seen, q_seen, _tests(design, law, observed, p_seen, q_seen))


def _tests(
    design: StreamDesign, law: ThresholdLaw, observed: Mapping[bool, Observed], p_seen: int, q_seen: int
) -> Iterator[NamedPValue]:
    yield "", binomial_p_value(p_seen, design.runs, design.p)
    yield "", binomial_p_value(q_seen, design.runs, design.q)
    # An excluded user must not count: in both worlds the item is published as if the user were not there.
    ups = [result for result in law.results(design.stream.distance) if is_up(result)]
    published = math.fsum(result.without_user for result in ups)
    for with_user, of_world in observed.items():
        yield "", multinomial_p_value(of_world.ends, design.law.with_user if with_user else design.law.without_user)
        yield "", binomial_p_value(of_world.excluded_published, of_world.excluded, published)
        # As many tests whatever was seen: their number is a factor of the p-value.
        for distance in design.stream.distances:
            counts = of_world.values.get(distance)
            masses = value_masses(law, distance, VALUE_REACH, with_user)
            yield "", 1.0 if counts is None else multinomial_p_value(counts, masses)


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

    def __add__(self, other: Observed) -> Observed:
        values = dict(self.values)
        for distance, counts in other.values.items():
            values[distance] = values[distance] + counts if distance in values else counts
        excluded = (self.excluded + other.excluded, self.excluded_published + other.excluded_published)
        return Observed(self.ends + other.ends, values, *excluded)


def trial_of_stream(run: PlannedRun | TrialPlan, stream: AttackStream, run_id: str) -> TrialPlan:
    """The run with the smallest threshold at which every item has another holder, and enough windows."""
    threshold = max(1, 1 - min(stream.distances))
    return TrialPlan.of(run, run_id=run_id, threshold=threshold, schedule=WindowSchedule.fixed(0, stream.rounds + 1, 1))


def run_stream(
    design: StreamDesign,
    law: ThresholdLaw,
    trial: TrialPlan,
    copies: int,
    secret: bytes,
    *,
    with_user: bool,
    monitor: type[HeavyHitterMonitor] = HeavyHitterMonitor,
) -> Observed:
    """Runs so many copies through the real code, window by window. trial: of `trial_of_stream`."""
    keys = trial.stream_keys(secret)
    table = ItemTable.of_labels(pa.array([f"copy {n}" for n in range(copies)]), keys.hash_items)[0]
    adversaries = _Adversaries(design, law, trial.threshold, table, with_user)
    running, state = monitor(trial, keys), MonitorState()
    for window in range(design.stream.rounds + 1):
        report, _ = running.close_window(window, find_candidates(adversaries.cells(window), trial, keys), state)
        adversaries.read([] if report is None else report.heavy_hitters)
    return adversaries.observed()


class _Adversaries:
    """The adversary of each copy: what it has seen, and what it puts into the next window.

    It plays until the user is excluded or the rounds are over, and one more window after an exclusion.
    """

    def __init__(
        self, design: StreamDesign, law: ThresholdLaw, threshold: int, table: ItemTable, with_user: bool
    ) -> None:
        self._stream, self._steps = design.stream, Steps.of_law(law, design.stream.distances)
        self._hits, self._threshold, self._with_user = design.hits_per_user, threshold, with_user
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
        is_late = self._stream.is_late(self._steps.size * self._level) & ~is_excluded
        self._distances = np.where(is_late, self._stream.later_distance, self._stream.distance)
        copies = np.flatnonzero(self._is_playing)
        counts = self._threshold + self._distances[copies] + self._with_user
        splits = np.concatenate([[0], np.cumsum(counts)])
        holders = np.arange(splits[-1]) + (window + 1) * FIRST_OTHER
        if self._with_user:
            holders[splits[:-1]] = copies
        return ItemHolders(np.full(len(copies), window), copies, splits, holders.astype(np.uint64), self._table)

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
