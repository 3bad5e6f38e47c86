"""One answer for each window, whatever dies and whenever: the real DoFns of a stream on an engine of the test's own."""

from __future__ import annotations

import dataclasses

import pytest

from dp_transforms.beam import poll_partitions
from dp_transforms.beam.in_order import InOrderDoFn
from dp_transforms.monitor.purses import PurseEntries
from dp_transforms.monitor.window_report import RunEnded
from tests.helpers.do_fn_state import Bag
from tests.helpers.dying_engine import SHARDS, Engine
from tests.helpers.naming_runs import naming_settings, with_hits
from tests.helpers.small_runs import settings_of, small_plan

PLAN = small_plan(6, sliding=2, max_items_per_user=1, hits_per_user=2, window_seconds=60)
HITS = settings_of(PLAN)
NAMES = dataclasses.replace(
    naming_settings(most_looks=40, forget_after=3, threshold=50, known_threshold=35), schedule=PLAN.schedule
)

NAMES_WITH_HITS = with_hits(dataclasses.replace(NAMES, spacing=120), 2, cheaper=0.4)


def is_contradicted(engines):
    for engine in engines:
        try:
            engine.run()
        except AssertionError as error:
            if "a window has two" in str(error):
                return True
            raise
    return False


def assert_one_answer(engine):
    engine.run()
    (end,) = engine.ends
    assert isinstance(end, RunEnded)
    assert (end.windows, end.reports) == (PLAN.schedule.horizon, len(engine.answers))
    assert len(engine.contents) == PLAN.schedule.horizon * SHARDS
    assert engine.is_empty(), "state is freed"


@pytest.mark.parametrize("seed", range(15))
def test_no_window_is_answered_twice(seed, monkeypatch):
    assert_one_answer(Engine(HITS, seed, monkeypatch))


@pytest.mark.parametrize("seed", range(15))
def test_no_window_is_answered_twice_and_no_look_paid_twice(seed, monkeypatch):
    engine = Engine(NAMES, seed, monkeypatch)
    assert_one_answer(engine)
    assert engine.answers, "something is named"
    for shard in range(SHARDS):
        stored, paid_once = engine.purses(shard)
        assert stored == paid_once
        assert stored


@pytest.mark.parametrize("seed", range(15))
def test_no_window_is_answered_twice_and_no_look_or_hit_paid_twice(seed, monkeypatch):
    engine = Engine(NAMES_WITH_HITS, seed, monkeypatch)
    assert_one_answer(engine)
    assert engine.answers, "something is named"
    on_hits_list = 0
    for shard in range(SHARDS):
        stored, paid_once = engine.purses(shard)
        assert stored == paid_once
        on_hits_list += sum(PurseEntries.from_cell(cell).pays_hits.sum() for cell in stored)
    assert on_hits_list
    hits = sum(found.level == 1 for report in engine.answers.values() for found in report.heavy_hitters)
    assert 0 < engine.most_hits() <= min(hits, NAMES_WITH_HITS.hits_per_user)


def test_this_engine_finds_out_whoever_does_not_wait(monkeypatch):
    assert is_contradicted(Engine(HITS, seed, monkeypatch, confirm=False) for seed in (4, 20, 23))


def test_this_engine_finds_out_whoever_asks_once(monkeypatch):
    monkeypatch.setattr(poll_partitions, "_CONFIRMATIONS", 1)
    assert is_contradicted(Engine(HITS, seed, monkeypatch) for seed in (126, 157, 183))


class FromMemory(InOrderDoFn):
    """Holds what the stage carries over in its process and not in the state."""

    def setup(self):
        super().setup()
        self.held = {}

    def process(self, element, cells, **state):
        return super().process(element, cells=self.held.setdefault(element[0], Bag()), **state)


def test_this_engine_finds_out_whoever_does_not_store_purses(monkeypatch):
    monkeypatch.setattr("tests.helpers.dying_engine.InOrderDoFn", FromMemory)
    assert is_contradicted(Engine(NAMES, seed, monkeypatch) for seed in (4, 9))
