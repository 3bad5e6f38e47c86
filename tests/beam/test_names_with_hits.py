"""Runs in which users pay for looks and for hits publish what the oracle publishes, however the work is cut."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dp_transforms.beam.find_looks import FindLooksCountedDoFn
from dp_transforms.beam.gather_counted import GatherCountedDoFn
from dp_transforms.beam.gather_in_order import parts_of_shard, parts_of_window
from dp_transforms.beam.monitor_counted import CountedMonitorDoFn
from dp_transforms.beam.set_up_workers import operator_counts
from dp_transforms.beam.spend_purses import SpendPursesDoFn
from dp_transforms.monitor import purses
from dp_transforms.monitor.counted_messages import pair_messages
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.operator_counts import LATE_BATCHES, PAIRS_UNPAID, WINDOWS_CLOSED
from dp_transforms.monitor.user_pairs import pairs_of_events
from dp_transforms.monitor.window_report import RunEnded
from tests.helpers.beam_pipelines import Branches, plain
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret
from tests.helpers.hits_oracle import Wallet, oracle_hits, replay_holders, stream_holders
from tests.helpers.memory_stream import Arrival, MemoryStream
from tests.helpers.names_plans import small_names_plan
from tests.helpers.naming_oracle import reports_of
from tests.helpers.small_runs import MICROS, SECRET, batch_of, batches_of, key_file, ordered_log, settings_of
from tests.helpers.stream_runs import Ran, arrivals_of, spread

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
HALF_DAY = 12 * 3600
SHARDS = 3


def transcript_of(log, plan, domain=(), *, holders=replay_holders, **arguments):
    """The oracle's, and the reports of it."""
    settings = settings_of(plan)
    keys = settings.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    found = oracle_hits(holders(log, settings, keys, **arguments), settings, keys, domain)
    return found, reports_of(found.named, settings)


def in_order(stamped):
    return sorted((plain(report) for report, _ in stamped), key=lambda report: report[1])


@pytest.mark.parametrize("sliding", [1, 3])
def test_replays_equal_the_oracle_however_the_work_is_cut(tmp_path, sliding):
    plan = small_names_plan(18, sliding=sliding, forget_after=4, hits=1, known_error=0.12)
    log = ordered_log(plan, 7, 420)
    shuffled = random.Random(6).sample(log, len(log))
    branches, key = Branches(), key_file(tmp_path)
    cuts = {
        "default shards": (None, batches_of(log, 150)),
        "one shard, one batch": (1, batches_of(log, len(log))),
        "seven shards, tiny batches": (7, batches_of(shuffled, 23)),
        "each event in two batches": (3, [*batches_of(log, 500), *batches_of(shuffled, 300)]),
    }
    for name, (shards, batches) in cuts.items():
        branches.add(name, batches, plan, noise_key=key, shards=shards)
    found, result = branches.run()
    transcript, expected = transcript_of(log, plan)
    for name, stamped in found.items():
        assert in_order(stamped) == [plain(report) for report in expected], name
        assert [stamp.micros for _, stamp in stamped] == [report.window_end - 1 for report, _ in stamped]
    assert not operator_counts(result).get(LATE_BATCHES)
    # Without these the equality would say little.
    assert transcript.kept_out > 10
    assert {entry.level for entry in transcript.named} == {1, 2}
    assert any(entry.was_known for entry in transcript.named)


def test_a_bundle_that_runs_twice_publishes_one_answer_and_a_known_domain_equals_the_oracle(tmp_path):
    plan = small_names_plan(12, domain=DOMAIN, hits=1)
    log = ordered_log(plan, 5, 400)
    branches, key = Branches(["--direct_runner_bundle_repeat=1"]), key_file(tmp_path)
    (tmp_path / "domain.txt").write_text("\n".join(DOMAIN))
    for name, domain in (("path", str(tmp_path / "domain.txt")), ("items", ItemDomain.of_ids(DOMAIN))):
        branches.add(name, batches_of(log, 150), plan, noise_key=key, shards=3, domain=domain)
    branches.add("empty", [batch_of([])], plan, noise_key=key, domain=ItemDomain.of_ids(DOMAIN))
    found, _ = branches.run()
    for name, stamped in found.items():
        transcript, expected = transcript_of(log if name != "empty" else [], plan, DOMAIN)
        assert len({entry.item for entry in transcript.named if entry.nobody}) > 1
        assert {str(plain(report)) for report, _ in stamped} == {str(plain(report)) for report in expected}, name
        assert len({report.window_start for report, _ in stamped}) == len(expected)


def test_a_log_without_events_has_no_reports_in_an_open_domain(tmp_path):
    branches, plan = Branches(), small_names_plan(hits=1)
    branches.add("empty", [batch_of([])], plan, noise_key=key_file(tmp_path))
    branches.add("nothing", [], plan, noise_key=key_file(tmp_path))
    found, _ = branches.run()
    assert found == {"empty": [], "nothing": []}


# ---------------------------------------------------------------------------------------------------------------------
# Streams
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sliding", [1, 3])
def test_a_stream_has_the_transcript_of_the_log_however_it_is_cut(tmp_path, sliding):
    plan = small_names_plan(
        18, sliding=sliding, window_seconds=HALF_DAY * sliding, forget_after=4, most_looks=16, hits=1, known_error=0.12
    )
    log = ordered_log(plan, 6)
    source = random.Random(2)
    in_disorder = [Arrival(event, event[2] + source.randrange(20 * MICROS)) for event in log]
    in_disorder.sort(key=lambda arrival: arrival.micros)
    ran = Ran(
        tmp_path,
        {
            "one partition": (MemoryStream.of([arrivals_of(log)], 10**6), plan, {}),
            "five, tiny polls": (MemoryStream.of(spread(arrivals_of(log), 5), 17), plan, {"shards": 3}),
            "disorder": (MemoryStream.of(spread(in_disorder, 2)), plan, {"shards": 4}),
        },
    )
    wallets: dict[str, Wallet] = {}
    transcript, expected = transcript_of(log, plan, holders=stream_holders, wallets=wallets)
    for name, reports in ran.reports.items():
        assert reports == expected, name
        assert ran.stamps[name] == [report.window_end - 1 for report in expected]
        assert ran.ended[name] == [RunEnded("events", plan.schedule.horizon, reports=len(expected))]
    assert ran.counts[WINDOWS_CLOSED] == 3 * plan.schedule.horizon
    assert not ran.counts.get(LATE_BATCHES)
    assert ran.counts[PAIRS_UNPAID] > 0
    joined = Counter(wallet.joined for wallet in wallets.values())
    assert len(joined) > 3, "users go over to the hits list in different windows, or not at all"
    assert transcript.kept_out > 50
    assert any(entry.was_known and not entry.nobody for entry in transcript.named)


@pytest.mark.long
def test_a_stream_with_a_known_domain_and_windows_without_events(tmp_path):
    plan = small_names_plan(sliding=3, domain=DOMAIN, hits=1)
    log = ordered_log(plan, 5)
    ran = Ran(
        tmp_path,
        {
            "busy": (MemoryStream.of(spread(arrivals_of(log), 3)), plan, {"shards": 3}),
            "no event": (MemoryStream.of([[]]), plan, {}),
        },
        domain=ItemDomain.of_ids(DOMAIN),
    )
    for name, events in (("busy", log), ("no event", [])):
        transcript, expected = transcript_of(events, plan, DOMAIN, holders=stream_holders)
        assert sum(entry.nobody for entry in transcript.named) > 5
        assert ran.reports[name] == expected, name


def test_known_items_are_looked_at_in_windows_without_events(tmp_path):
    """Twelve items are held in the first window, and nothing is held in the seventeen after it."""
    plan = small_names_plan(18, forget_after=4, known_error=0.12, hits=1)
    log = [(f"u{user}", f"i{user % 12}", plan.schedule.start_seconds * MICROS + MICROS) for user in range(120)]
    ran = Ran(tmp_path, {"silence": (MemoryStream.of([arrivals_of(log)]), plan, {"shards": 3})})
    transcript, expected = transcript_of(log, plan, holders=stream_holders)
    assert {entry.window for entry in transcript.named if not entry.nobody} == {0}
    assert len({entry.window for entry in transcript.named if entry.nobody}) > 1
    assert ran.reports["silence"] == expected


class Steps:
    """From the groups of user shards to reports, on state that the test holds. order: shuffles what each step gets."""

    def __init__(self, settings, order):
        self.order, self.states = order, {}
        self.spend = SpendPursesDoFn(settings, HeldSecret(), SHARDS)
        self.find = FindLooksCountedDoFn(settings, HeldSecret(), SHARDS, None)
        self.monitor = CountedMonitorDoFn(settings, HeldSecret())
        for do_fn in (self.spend, self.find, self.monitor):
            do_fn.setup()
        self.gather = GatherCountedDoFn(SHARDS)

    def taken(self, do_fn, parts, **more):
        kinds = {"near": Bag, "far": Bag, "waiting": Cell, **more}
        for part in self.shuffled(parts):
            state = self.states.setdefault((do_fn, part[0]), {name: kind() for name, kind in kinds.items()})
            yield from do_fn.process(part, **state)

    def gathered(self, messages, parts_of):
        held, parts = {}, []
        for message in self.shuffled(messages):
            for group in self.gather.process(message, *held.setdefault(message[0], (Bag(), Cell()))):
                parts += parts_of(group)
        return parts

    def shuffled(self, elements):
        elements = list(elements)
        self.order.shuffle(elements)
        return elements

    def run(self, parts):
        items = self.gathered(self.taken(self.spend, parts, purses=Bag, progress=Cell), parts_of_shard)
        found = self.taken(self.find, items, known=Bag, next_window=Cell)
        windows = self.gathered(found, lambda group: parts_of_window(group, "events"))
        return [output.value for output in self.taken(self.monitor, windows, budgets=Bag, progress=Cell, known=Bag)]


def user_parts(log, settings, most_bytes):
    """All windows of all shards of users, also those without events."""
    keys, blobs = settings.stream_keys(SECRET), {}
    for window, shard, pairs in pairs_of_events(
        batch_of(log), settings.schedule, keys, windows_per_slab=1, shards=SHARDS
    ):
        blobs[window, shard] = list(pair_messages(pairs, most_bytes))
    for window in range(settings.schedule.horizon):
        for shard in range(SHARDS):
            yield from parts_of_shard(((window, shard), blobs.get((window, shard), [])))


@pytest.mark.long
@pytest.mark.parametrize("most_bytes", [10**6, 1])
@pytest.mark.parametrize("seed", range(3))
def test_windows_in_any_order_give_the_transcript_of_the_oracle(seed, most_bytes, monkeypatch):
    """At each step; also in parts, and with purses that are rewritten again and again."""
    monkeypatch.setattr("dp_transforms.beam.gather_in_order.MOST_MESSAGE_BYTES", most_bytes)
    monkeypatch.setattr(purses, "_SPARE_CELLS", seed)
    plan = small_names_plan(30, sliding=3, window_seconds=36 * 3600, forget_after=4, most_looks=16, hits=1)
    log = ordered_log(plan, seed)
    _, expected = transcript_of(log, plan, holders=stream_holders)
    steps = Steps(settings_of(plan), random.Random(seed))
    horizon = plan.schedule.horizon
    parts = user_parts(log, settings_of(plan), most_bytes)
    assert steps.run(parts) == [*expected, RunEnded("events", horizon, len(expected))]
    assert not any(state[kind].content for state in steps.states.values() for kind in ("near", "far"))
    # What comes again for a window that had its turn changes nothing.
    before = {key: {name: state.content for name, state in held.items()} for key, held in steps.states.items()}
    again = (2, 1, [])
    assert [*steps.taken(steps.find, [(0, again)]), *steps.taken(steps.monitor, [("events", again)])] == []
    after = {key: {name: state.content for name, state in held.items()} for key, held in steps.states.items()}
    assert after == before
