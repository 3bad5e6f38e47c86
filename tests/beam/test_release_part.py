"""A range that is taken in parts publishes what the one run publishes, in every mode, however it is cut and sharded."""

from __future__ import annotations

import random

import pytest

from dp_transforms.beam.release_part import ReleasePart
from dp_transforms.beam.set_up_workers import operator_counts
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_RANGE, PAIRS_UNPAID
from dp_transforms.monitor.purses import PurseEntries
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind
from dp_transforms.runs.state_file import StateFile
from tests.helpers.beam_pipelines import plain
from tests.helpers.hits_oracle import oracle_hits, stream_holders
from tests.helpers.names_plans import names_plan_of, small_names_plan
from tests.helpers.naming_oracle import oracle_names, reports_of
from tests.helpers.oracle import oracle_transcript
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.parts import Parts
from tests.helpers.small_runs import MICROS, SECRET, START, ordered_log, random_log, settings_of, small_plan

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
HALF_DAY = 12 * 3600
TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
REPEATED = ("--direct_runner_bundle_repeat=1",)
CUTS = {"five": [2, 4, 7, 9], "one": [], "two": [4], "each": list(range(1, 100))}


def taken(folder, plan, log, cut, *, shards=None, flags=(), **arguments):
    """The whole range in parts that end at these windows; another number of shards in each if none is given."""
    parts = Parts(folder, plan, **arguments)
    horizon = plan.schedule.horizon
    for number, end in enumerate([*(end for end in CUTS[cut] if end < horizon), horizon]):
        parts.take(end, log, shards=shards or (1, 3, 8, 5)[number % 4], flags=flags)
    return parts


def expected_names(log, plan, domain=(), wallets=None):
    settings = settings_of(plan)
    keys = settings.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    named = oracle_names(stream_weights(log, settings, keys, wallets), settings, keys, domain)
    return reports_of(named, settings), named


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("sliding", [3, 1])
def test_names_are_those_of_the_rule_of_a_stream(tmp_path, sliding, cut):
    plan = small_names_plan(12, sliding=sliding, window_seconds=HALF_DAY * sliding, forget_after=4, most_looks=16)
    log, wallets = ordered_log(plan, 6), {}
    parts = taken(tmp_path / "run", plan, log, cut)
    expected, named = expected_names(log, plan, wallets=wallets)
    assert parts.reports == expected
    # Without these the equality would say little.
    assert sum(entry.was_known and not entry.nobody for entry in named) > 5
    assert min(wallet.left for wallet in wallets.values()) < 2 * plan.units[0]
    held = [PurseEntries.from_cell(cell) for cell in StateFile(parts.states[-1]).cells_of(Kind.PURSES)]
    assert sorted(left for part in held for left in part.left) == sorted(wallet.left for wallet in wallets.values())


@pytest.mark.parametrize("cut", ["five", "each"])
def test_names_in_a_known_domain(tmp_path, cut):
    plan = small_names_plan(sliding=3, domain=DOMAIN)
    log = ordered_log(plan, 5)
    parts = taken(tmp_path / "run", plan, log, cut, domain=ItemDomain.of_ids(DOMAIN))
    expected, named = expected_names(log, plan, DOMAIN)
    assert parts.reports == expected
    assert sum(entry.nobody for entry in named) > 5


def test_known_items_are_looked_at_in_parts_without_events(tmp_path):
    plan = small_names_plan(18, forget_after=4, known_error=0.12)
    log = [(f"u{user}", f"i{user % 12}", (START + 1) * MICROS) for user in range(120)]
    parts = taken(tmp_path / "run", plan, log, "each")
    expected, named = expected_names(log, plan)
    assert len({entry.window for entry in named if entry.nobody}) > 3
    assert parts.reports == expected


@pytest.mark.parametrize("cut", ["five", "each", "two"])
@pytest.mark.parametrize("domain", [(), DOMAIN], ids=["open", "known"])
def test_names_with_hits(tmp_path, domain, cut):
    plan = small_names_plan(12, sliding=3, forget_after=4, hits=1, known_error=0.12, domain=domain)
    log = ordered_log(plan, 7, 420)
    settings = settings_of(plan)
    keys = settings.stream_keys(SECRET)
    counted = [event for event in log if not domain or event[1] in domain]
    transcript = oracle_hits(stream_holders(counted, settings, keys), settings, keys, domain)
    parts = taken(tmp_path / "run", plan, log, cut, domain=ItemDomain.of_ids(domain) if domain else None)
    assert parts.reports == reports_of(transcript.named, settings)
    assert transcript.kept_out > 5


@pytest.mark.parametrize("cut", ["five", "one", "two", "each"])
@pytest.mark.parametrize("release", ["labels", "counts"])
def test_the_modes_that_charge_hits(tmp_path, release, cut):
    plan = small_plan(release=release, sliding=3, hits_per_user=2)
    log = random_log(plan, seed=6)
    transcript = oracle_transcript(log, settings_of(plan), SECRET)
    parts = taken(tmp_path / "run", plan, log, cut)
    assert [plain(report) for report in parts.reports] == [plain(report) for report in transcript.reports]
    assert transcript.kept_out > 0
    assert release == "counts" or len({report.epsilon_spent for report in transcript.reports}) > 1


@pytest.mark.parametrize(("release", "threshold"), [("kms21", 100), ("labels", 2), ("counts", 2)])
def test_the_modes_that_charge_hits_in_a_known_domain(tmp_path, release, threshold):
    plan = small_plan(release=release, sliding=3, hits_per_user=2, domain=DOMAIN, threshold=threshold)
    log = random_log(plan, seed=6)
    inside = [event for event in log if event[1] in DOMAIN]
    transcript = oracle_transcript(inside, settings_of(plan), SECRET, DOMAIN)
    parts = taken(tmp_path / "run", plan, log, "five", domain=ItemDomain.of_ids(DOMAIN))
    assert [plain(report) for report in parts.reports] == [plain(report) for report in transcript.reports] != []


@pytest.mark.parametrize("kind", ["names", "hits", "labels"])
def test_the_state_is_a_function_of_what_was_carried_on_and_not_of_the_shards(tmp_path, kind):
    """Byte for byte, also where each bundle runs twice, where two processes work, and however events are ordered."""
    plan = {
        "names": small_names_plan(12, forget_after=4),
        "hits": small_names_plan(12, forget_after=4, hits=1),
        "labels": small_plan(release="labels", hits_per_user=2),
    }[kind]
    log = ordered_log(plan, 6)
    shuffled = random.Random(6).sample(log, len(log))
    runs = [
        taken(tmp_path / "a", plan, log, "five", shards=8),
        taken(tmp_path / "b", plan, shuffled, "five", shards=3, flags=REPEATED),
        taken(tmp_path / "c", plan, [*log, *log], "five", shards=1),
    ]
    files = [[path.read_bytes() for path in run.states] for run in runs]
    assert files[0] == files[1] == files[2]
    assert len(set(files[0])) == len(files[0])
    cells = {row.kind for path in runs[0].states for row in StateFile(path).rows}
    expected = {"names": {Kind.PURSES, Kind.KNOWN}, "labels": {Kind.BUDGETS, Kind.HIT_BOUND}, "hits": set(Kind)}
    assert cells == expected[kind]


@pytest.mark.long
def test_two_processes_take_a_part_as_one_does(tmp_path):
    plan = small_names_plan(12, forget_after=4)
    log = ordered_log(plan, 6)
    one = taken(tmp_path / "one", plan, log, "two")
    two = Parts(tmp_path / "two", plan)
    for end in (4, 12):
        two.take(end, log, flags=TWO_PROCESSES)
    assert two.states[-1].read_bytes() == one.states[-1].read_bytes()


def test_who_comes_back_has_what_was_left(tmp_path):
    """One user with all its purse spent in the first part; the same events in a later one pay for nothing."""
    plan = small_names_plan(12, most_looks=4)
    heavy = [("heavy", f"item-{number}", (START + 1) * MICROS) for number in range(40)]
    again = [(user, item, time + 600 * MICROS) for user, item, time in heavy]
    parts = Parts(tmp_path / "run", plan)
    parts.take(3, heavy)
    assert 0 < operator_counts(parts.result)[PAIRS_UNPAID] < 40
    parts.take(6, [])
    parts.take(12, again)
    assert operator_counts(parts.result)[PAIRS_UNPAID] == 40


def test_events_outside_of_the_part_are_skipped_and_counted(tmp_path):
    """With sliding windows an event may lie in windows of two parts, and counts in both."""
    plan = small_names_plan(12, sliding=3)
    slide = plan.schedule.slide_seconds
    log = [("u", "i", (START + slide * number) * MICROS) for number in range(12)]  # event n in windows n, n + 1, n + 2
    parts = Parts(tmp_path / "run", plan)
    for end, outside in ((5, 7), (6, 9), (14, 4)):
        parts.take(end, log)
        assert operator_counts(parts.result)[EVENTS_OUTSIDE_RANGE] == outside
    held = [PurseEntries.from_cell(cell) for cell in StateFile(parts.states[-1]).cells_of(Kind.PURSES)]
    assert [part.looks.tolist() for part in held] == [[14]] or sum(part.looks.sum() for part in held) <= 36


def test_a_part_must_lie_in_the_plan_and_counts_cannot_be_paid_in_parts():
    plan = small_names_plan(12)
    with pytest.raises(ValueError, match="not windows of the plan"):
        ReleasePart(plan, RunPart(3, 13), noise_key="noise.key", run_id="r")
    counting = names_plan_of(plan.schedule, counts_for=2)
    with pytest.raises(ValueError, match="Make the plan without it"):
        ReleasePart(counting, RunPart(0, 3), noise_key="noise.key", run_id="r")


def test_a_worker_refuses_a_state_that_was_exchanged(tmp_path):
    plan = small_names_plan(12)
    log = ordered_log(plan, 6, 200)
    parts, others = Parts(tmp_path / "run", plan), Parts(tmp_path / "other", plan)
    parts.take(3, log)
    others.take(3, log[:50])
    state = StateFile(parts.states[-1])
    part = RunPart(3, 6, str(others.states[-1]), state.fingerprint)
    with pytest.raises(ValueError, match="not the state that this part began with"):
        part.state()
