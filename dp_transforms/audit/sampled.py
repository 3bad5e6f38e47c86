"""Runs the real monitor many times on a stream and on its neighbour: a lower bound on epsilon, and a test of its noise.

Many independent copies run at once. Each has an item, a user x' and other holders of its own, so their draws are
independent. The threshold is small, and the counts are shifted with it: only their difference matters. This difference,
the noise, the zone and the hits are those of the plan. The exact law decides the stream, the event and the bins, all
before anything is drawn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.audit.attack_streams import AttackStream, Steps, StreamLaw
from dp_transforms.audit.claim import Claim, Mechanism
from dp_transforms.audit.query_law import QueryLaw
from dp_transforms.audit.statistics import binomial_p_value, epsilon_lower_bound, multinomial_p_value
from dp_transforms.audit.worst_streams import law_of, worst_stream
from dp_transforms.monitor.candidates import find_candidates
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.window_report import ABOVE, HeavyHitter
from dp_transforms.plan.window_schedule import WindowSchedule

CONFIDENCE = 0.999
FALSE_ALARM = 1e-6  # of the test of the noise, all its parts together
_COPIES_AT_ONCE = 2_500
_SWITCHES = 8  # values of epsilon tried for the change of distance; the best one is taken
_FIRST_FILLER = 1 << 40  # the ids of other holders are at least this, those of x' below
VALUE_REACH = 2048  # published values up to this far from the count have a bin of their own

Counts = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class SamplingDesign:
    """What the runs sample, fixed before they begin. stream: of the direction in which the user is removed.

    event_loss: the event S is a privacy loss of at least this at the end. p, q: its exact probabilities in the world
    without the user and in the one with it. expected_epsilon: the bound to expect from these.
    """

    stream: AttackStream
    law: StreamLaw
    runs: int
    event_loss: float
    p: float
    q: float
    expected_epsilon: float


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Copies that one monitor runs. hits_per_user: after this many hits the user should not count any more."""

    settings: MonitorSettings
    query_law: QueryLaw
    stream: AttackStream
    hits_per_user: int
    copies: int
    with_user: bool
    secret: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass
class Observed:
    """How often each end was seen, int64[hits + 1, levels] as in `StreamLaw`; and each published value.

    values: by distance, int64[2 * VALUE_REACH + 1]: value minus the count without the user, 0 in the middle; values
    further out are counted at the ends.
    excluded: copies in which the user was excluded, and given one more item. excluded_published: those of them in which
    that item was published.
    """

    ends: Counts
    values: dict[int, Counts]
    excluded: int
    excluded_published: int

    def add(self, other: Observed) -> None:
        self.ends += other.ends
        self.excluded += other.excluded
        self.excluded_published += other.excluded_published
        for distance, counts in other.values.items():
            self.values[distance] = self.values.get(distance, 0) + counts


@dataclasses.dataclass(frozen=True)
class SampledAudit:
    """runs: copies in each world. p_seen, q_seen: how many of them ended in the event.

    epsilon: the lower bound, wrong with probability at most 1 - confidence. p_value: of the test that the real code
    samples what the exact law says, the smallest of several times their number. violations: as in `ExactAudit`.
    """

    design: SamplingDesign
    p_seen: int
    q_seen: int
    epsilon: float
    confidence: float
    p_value: float
    violations: tuple[str, ...]


def design_sampling(mechanism: Mechanism, claim: Claim, runs: int, rounds: int) -> SamplingDesign:
    """The stream and the event for which `runs` runs can be expected to show the largest epsilon."""
    rounds = min(rounds, mechanism.horizon)  # more windows than those of the plan would show more than the plan does
    unlimited = dataclasses.replace(mechanism, horizon=rounds)
    streams = [AttackStream.static(False, mechanism.law.telling, rounds)]
    if mechanism.law.far is not None:
        reference = law_of(unlimited, worst_stream(unlimited, 0.0, rounds, False))
        largest = reference.epsilon(1 / runs, False)
        switches = [largest * part / (_SWITCHES - 1) for part in range(_SWITCHES)]
        streams = [worst_stream(unlimited, epsilon, rounds, False) for epsilon in switches]
    designs = [design for stream in streams for design in _events(stream, law_of(unlimited, stream), runs, claim.delta)]
    return max(designs, key=lambda design: design.expected_epsilon)


def _events(stream: AttackStream, law: StreamLaw, runs: int, delta: float) -> Iterator[SamplingDesign]:
    losses = -law.log_ratio.reshape(-1)
    order = np.argsort(-losses, kind="stable")
    p, q = np.cumsum(law.without_user.reshape(-1)[order]), np.cumsum(law.with_user.reshape(-1)[order])
    ordered = losses[order]
    last_of_equal = np.flatnonzero(np.append(np.diff(ordered) < -1e-9 * np.abs(ordered[1:]), True))
    for at in last_of_equal:
        seen = round(runs * p[at])
        if ordered[at] <= 0 or seen >= runs:
            break
        if seen >= 5:
            bound = epsilon_lower_bound(seen, math.ceil(runs * q[at]), runs, delta, CONFIDENCE)
            yield SamplingDesign(stream, law, runs, float(ordered[at]) * (1 - 1e-9), float(p[at]), float(q[at]), bound)
    yield SamplingDesign(stream, law, runs, -math.inf, 1.0, 1.0, 0.0)  # a certain event shows nothing


def settings_for_sampling(settings: MonitorSettings, stream: AttackStream) -> MonitorSettings:
    """The settings of a run with the smallest threshold at which every item has another holder, and enough windows."""
    threshold = max(1, 1 - min(stream.distance, stream.later_distance))
    return dataclasses.replace(settings, threshold=threshold, schedule=WindowSchedule.fixed(0, stream.rounds + 1, 1))


def chunks_of(
    settings: MonitorSettings,
    query_law: QueryLaw,
    design: SamplingDesign,
    secret: bytes,
    *,
    copies: int = _COPIES_AT_ONCE,
) -> list[Chunk]:
    """Both worlds, cut into parts that can be run in any order and anywhere. secret: fresh, at least 32 bytes."""
    base = settings_for_sampling(settings, design.stream)
    hits = len(design.law.with_user) - 1
    chunks = []
    for low in range(0, design.runs, copies):
        for with_user in (False, True):
            run = dataclasses.replace(base, run_id=f"{base.run_id}, copies from {low}, {with_user}")
            chunks.append(Chunk(run, query_law, design.stream, hits, min(copies, design.runs - low), with_user, secret))
    return chunks


def run_chunk(chunk: Chunk, monitor: type[HeavyHitterMonitor] = HeavyHitterMonitor) -> Observed:
    """Runs the copies of a chunk through the real code, window by window, in one world."""
    settings, stream = chunk.settings, chunk.stream
    keys = settings.stream_keys(chunk.secret)
    running = monitor(settings, keys)
    copies = _Copies(
        chunk, ItemTable.of_labels(pa.array([f"copy {n}" for n in range(chunk.copies)]), keys.hash_items)[0]
    )
    state = MonitorState()
    for window in range(stream.rounds + 1):
        cells = copies.cells(window)
        if not len(cells):
            break
        report, _ = running.close_window(window, find_candidates(cells, settings, keys), state)
        copies.read([] if report is None else report.heavy_hitters)
    return copies.observed()


class _Copies:
    """The adversary of each copy: what it has seen, and what it puts into the next window.

    It plays until the user is excluded or the rounds are over, and one more window after an exclusion.
    """

    def __init__(self, chunk: Chunk, table: ItemTable) -> None:
        self._chunk = chunk
        self._table = table
        self._labels = table.labels.to_pylist()
        distances = (chunk.stream.distance, chunk.stream.later_distance)
        self._steps = Steps.of_law(chunk.query_law, tuple(dict.fromkeys(distances)))
        self._paid = np.zeros(chunk.copies, dtype=np.int64)
        self._level = np.zeros(chunk.copies, dtype=np.int64)
        self._is_done = np.zeros(chunk.copies, dtype=np.bool_)
        self._playing = np.zeros(0, dtype=np.int64)
        self._distances = np.zeros(0, dtype=np.int64)
        self._values: dict[int, Counts] = {}
        self._excluded_published = 0

    def cells(self, window: int) -> ItemHolders:
        """One item for each copy that still plays."""
        chunk, stream = self._chunk, self._chunk.stream
        is_excluded = self._paid == chunk.hits_per_user
        self._playing = np.flatnonzero(~self._is_done & (is_excluded | (window < stream.rounds)))
        self._distances = np.full(len(self._playing), stream.distance)
        if not stream.is_static:
            log_ratio = self._steps.log_ratio(self._paid[self._playing], self._level[self._playing])
            is_late = stream.is_late(log_ratio) & ~is_excluded[self._playing]
            self._distances[is_late] = stream.later_distance
        counts = chunk.settings.threshold + self._distances + chunk.with_user
        splits = np.concatenate([[0], np.cumsum(counts)])
        holders = np.arange(splits[-1]) + (window + 1) * _FIRST_FILLER
        if chunk.with_user:
            holders[splits[:-1]] = self._playing
        windows = np.full(len(self._playing), window)
        return ItemHolders(windows, self._playing, splits, holders.astype(np.uint64), self._table)

    def read(self, published: Sequence[HeavyHitter]) -> None:
        """Updates each copy with what was published of it."""
        was_excluded = self._paid[self._playing] == self._chunk.hits_per_user
        moves = np.full(len(self._playing), -1)  # nothing published: likelier without the user
        charges = np.zeros(len(self._playing), dtype=np.int64)
        row_of_label = {self._labels[copy]: row for row, copy in enumerate(self._playing.tolist())}
        distances, excluded_rows = self._distances.tolist(), was_excluded.tolist()
        for found in published:
            row = row_of_label[found.item]
            if excluded_rows[row]:
                self._excluded_published += 1
                continue
            charges[row] = found.zone != ABOVE
            offset = 1
            if found.noisy_count is not None:
                offset = found.noisy_count - self._chunk.settings.threshold - distances[row]
                counts = self._values.setdefault(distances[row], np.zeros(2 * VALUE_REACH + 1, dtype=np.int64))
                counts[min(max(offset, -VALUE_REACH), VALUE_REACH) + VALUE_REACH] += 1
            moves[row] = 1 if offset > 0 else -1
        self._level[self._playing] += np.where(was_excluded, 0, moves)
        self._paid[self._playing] += charges
        self._is_done[self._playing[was_excluded]] = True

    def observed(self) -> Observed:
        rounds = self._chunk.stream.rounds
        ends = np.zeros((self._chunk.hits_per_user + 1, 2 * rounds + 1), dtype=np.int64)
        np.add.at(ends, (self._paid, self._level + rounds), 1)
        return Observed(ends, self._values, int(self._is_done.sum()), self._excluded_published)


def judge(
    design: SamplingDesign, query_law: QueryLaw, claim: Claim, without_user: Observed, with_user: Observed
) -> SampledAudit:
    """The bound and the test, from what both worlds showed."""
    in_event = -design.law.log_ratio >= design.event_loss
    p_seen, q_seen = int(without_user.ends[in_event].sum()), int(with_user.ends[in_event].sum())
    epsilon = epsilon_lower_bound(p_seen, q_seen, design.runs, claim.delta, CONFIDENCE)
    p_values = [
        multinomial_p_value(without_user.ends, design.law.without_user),
        multinomial_p_value(with_user.ends, design.law.with_user),
        binomial_p_value(p_seen, design.runs, design.p),
        binomial_p_value(q_seen, design.runs, design.q),
    ]
    # An excluded user must not count: in both worlds the item is published as if the user were not there.
    published = math.fsum(result[1] for result in query_law.results(design.stream.distance) if result.log_ratio > 0)
    for observed, is_with_user in ((without_user, False), (with_user, True)):
        # As many tests whatever was seen: their number is a factor of the p-value.
        p_values.append(binomial_p_value(observed.excluded_published, observed.excluded, published))
        for distance in {design.stream.distance, design.stream.later_distance}:
            if (counts := observed.values.get(distance)) is None:
                p_values.append(1.0)
            else:
                masses = query_law.value_masses(distance, VALUE_REACH, is_with_user)
                p_values.append(multinomial_p_value(counts, masses))
    p_value = min(1.0, min(p_values) * len(p_values))
    violations = []
    if epsilon > claim.epsilon:
        violations.append(
            f"the real code attains epsilon {epsilon:.4g} with {100 * CONFIDENCE:g} % confidence in "
            f"{design.runs:,} runs of each world; the claim is {claim.epsilon:g}"
        )
    if p_value < FALSE_ALARM:
        violations.append(
            f"the real code does not publish what its exact law says (p = {p_value:.2g}; a false alarm has probability "
            f"{FALSE_ALARM:g})"
        )
    return SampledAudit(design, p_seen, q_seen, epsilon, CONFIDENCE, p_value, tuple(violations))
