"""Amounts: how much of a column of numbers all users of a named item have (docs/guarantee.md, "Amounts")."""

import functools
import json
import math
import random
import re
from collections import Counter
from fractions import Fraction

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms import Plan
from dp_transforms.logs import EventFields, EventFileError, find_log_chunks, read_log_chunk
from dp_transforms.logs.tables import read_table
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS, stated_amounts
from dp_transforms.monitor.event_batch import concatenate
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.named_items import levels_and_sizes
from dp_transforms.monitor.pairs import WeightedPairs
from dp_transforms.monitor.purses import Purses
from dp_transforms.monitor.window_report import release_order
from dp_transforms.plan.facets import FULL_VALUE
from dp_transforms.views.plan_words import rounds_in_words
from tests.helpers.facet_runs import OF_FACETS, Run, by_hash, trial_of_labels
from tests.helpers.naming_oracle import reports_of
from tests.helpers.rounds_oracle import WeightOracle
from tests.helpers.rounds_runs import SCHEDULE, at, busy_log, named_in_blocks
from tests.helpers.small_runs import SECRET

MOST = 600
trial_with_weight = functools.partial(trial_of_labels, (f"seconds<={MOST}",))


def log_with_weight(seed):
    """Each event has nothing, a little or a lot of it; who has an item in two events may have more than all of it."""
    draws = random.Random(seed)
    crowds = [(f"{window}-{number}", "topic-1", at(window)) for window in (3, 5, 9) for number in range(20 * window)]
    log = [*busy_log(seed), *crowds, *busy_log(seed)[::3]]
    return [(*event, (draws.choice((0, 1, 70_000, 400_000, FULL_VALUE)),)) for event in log]


@pytest.mark.parametrize(("seed", "sliding"), [(3, 1), (8, 3)])
def test_the_stages_say_what_the_reference_says_however_items_are_cut(seed, sliding):
    trial, log = trial_with_weight(sliding=sliding), log_with_weight(seed)
    oracle = WeightOracle(log, trial, trial.stream_keys(SECRET))
    named = reports_of(oracle.names(), trial)
    stated = {(trial.schedule.window_start_micros(each.window), each.item[0]): each for each in oracle.facets}
    expected = []
    for report in named:
        hitters = []
        for hitter in report.heavy_hitters:
            of_item = stated.get((report.window_start, hitter.item))
            amount = 0 if of_item is None else of_item.at_least_users
            implied = math.ceil(Fraction(amount, MOST))
            users = max(hitter.at_least_users, implied if implied >= 5 else 0)
            hitters.append(hitter._replace(at_least_weight=amount, at_least_users=users))
        expected.append(report._replace(heavy_hitters=sorted(hitters, key=release_order)))
    assert len({each.at_least_users for each in stated.values()}) > 2, "of several sizes"
    assert len({weight for users in oracle.weights.values() for weight in users.values()}) > 2
    for each in stated.values():
        users = [user for user, place in oracle.amounts if place == (each.window, each.item)]
        of_all = sum(oracle.value(user, (each.window, each.item)) for user in users)
        assert each.at_least_users <= MOST * of_all, "no sentence of these is false"
    for shards in (1, 3):
        run = Run(log, trial, shards)
        assert run.reports(trial) == expected
        assert [run.drawn] == oracle.drawn_facets


VALUES = st.lists(st.integers(1, FULL_VALUE) | st.just(FULL_VALUE), min_size=1, max_size=60)


@given(VALUES, st.integers(1, 12))
def test_a_user_pays_for_its_own_value_and_never_more_than_its_purse(values, parts):
    """In one part of a run or in several: each look has a price of its value's share at most, and a weight of that."""
    trial = trial_with_weight()
    units, listed = trial.rounds.facets.units, trial.looks.listed
    price = dict(zip(trial.looks.weights, trial.looks.units, strict=True))
    largest = max(weight for weight, units_of in price.items() if units_of <= units // 4)
    keys, spent = trial.stream_keys(SECRET), 0
    purses = Purses(trial, keys, units=units)
    for part, window in enumerate(np.array_split(np.arange(trial.schedule.horizon), parts)):
        some = np.array(values[part::parts], dtype=np.int64)
        if not len(some):
            continue
        table, items = ItemTable.of_labels(pa.array([str(number) for number in range(len(some))]), keys.hash_items)
        zeros, windows = np.zeros_like(some), np.full(len(some), window[0])
        pairs = WeightedPairs(np.array([7], dtype=np.uint64), zeros, windows, items, table, some)
        weights = purses.spend_by_value(pairs, some, int(window[0]), int(window[-1]) + 1)
        amounts = [price.get(weight, 0) for weight in weights.tolist()]
        for value, weight, amount in zip(some.tolist(), weights.tolist(), amounts, strict=True):
            assert weight * FULL_VALUE <= value * largest
            assert amount <= (units - spent) * Fraction(math.ceil(10_000 * Fraction(value, FULL_VALUE) ** 2), 10_000)
        spent += sum(amounts)
        assert spent <= units
        (left,) = [entry.left[0] for entry in [purses._entries_of(pairs.users, int(window[-1]) + 1)]]
        assert left == units - spent
    alone = listed.largest(np.array([units // 4]))[0][0]
    assert values != [FULL_VALUE] or parts > 1 or spent == price[int(alone)], "a look of full value alone"


def test_weights_are_those_of_own_rows_and_small_values_leave_more_for_large_ones():
    trial, labels = trial_with_weight(), [str(number) for number in range(10)]
    told = [named_in_blocks(trial, labels)] * OF_FACETS
    first = [("first", item, at(0), (FULL_VALUE if item == "7" else FULL_VALUE // 10,)) for item in labels]
    full = [("first", item, at(0), (FULL_VALUE,)) for item in labels]
    others = [(f"user-{number}", str(number % 3), at(0), (number * 5_000,)) for number in range(200)]
    alone, rest, both = (Run(each, trial, told=told).sums[-1] for each in (first, others, [*first, *others]))
    assert by_hash(both) == by_hash(alone) + by_hash(rest)
    assert alone.sums.max() > Run(full, trial, told=told).sums[-1].sums.max() > 0
    not_named = [("first", "elsewhere", at(0), (FULL_VALUE,)), ("first", "7", at(1), (FULL_VALUE,))]
    assert not len(Run(not_named, trial, told=told).sums[-1])
    run = Run([], trial, told=told)
    assert run.drawn == len(labels), "drawn for, though nobody has any"
    assert len(run.found) - 1 == OF_FACETS


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3, st.integers(0, FULL_VALUE)), max_size=40), st.randoms())
def test_what_a_user_has_is_added_up_to_all_of_it_in_any_order(rows, order):
    expected = Counter[tuple[int, int, int]]()
    for user, window, item, amount in rows:
        expected[user, window, item] += amount
    order.shuffle(rows)
    cut = order.randrange(len(rows) + 1)
    parts = [pairs for some in (rows[:cut], rows[cut:]) if some for pairs in _pairs_of_rows(some)]
    found = WeightedPairs.of_messages([message for part in parts for message in part.messages(300)])
    users, labels = found.users[found.codes].tolist(), found.table.labels.take(pa.array(found.items)).to_pylist()
    columns = zip(users, found.windows.tolist(), map(int, labels), found.facets.tolist(), strict=True)
    assert {place: amount for *key, amount in columns for place in [tuple(key)]} == {
        place: min(amount, FULL_VALUE) for place, amount in expected.items()
    }


def _pairs_of_rows(rows):
    users, windows, numbers, amounts = np.array(rows, dtype=np.int64).T
    hashes = trial_with_weight().stream_keys(SECRET).hash_items
    table, places = ItemTable.of_labels(pa.array(["0", "1", "2"]), hashes)
    known = WeightedPairs(np.arange(3).astype(np.uint64), users, windows, places[numbers], table, amounts)
    return [pairs.select(slice(None)) for _, pairs in WeightedPairs.by_group(known, users % 2)]


def test_amounts_are_rounded_down_and_do_not_run_over():
    boundaries = np.array([0, 99, 100, 101, 3 * 10**17])
    found = stated_amounts(boundaries, 100, 12_345, 10**9)
    exact = [max(0, int(each) - 100) * 10**9 // 12_345 for each in boundaries[:-1]]
    assert found[:-1].tolist() == exact
    assert stated_amounts(np.array([10**14]), 0, 12_345, 10**5).tolist() == [10**19 // 12_345]


# --- Plans and logs


def test_a_plan_with_a_weight_takes_a_fifth_of_each_purse_and_turns_on_rounds():
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, weight="seconds", most_weight=600)
    assert plan.facets == ("seconds<=600",)
    assert plan.units_of_rounds[-1] == PURSE_UNITS // 5
    assert Plan.from_json(plan.to_json()) == plan
    terms = plan.terms_of_round(len(plan.units_of_rounds) - 1, 1000, plan.schedule.horizon)
    beside = plan.terms_of_round(3, 1000, plan.schedule.horizon)
    assert terms.likely_noise == beside.likely_noise, "as for any look at so many pairs"
    assert terms.largest_weight == plan.looks.listed.largest(np.array([PURSE_UNITS // 20]))[0][0]
    assert terms.threshold == terms.likely_noise + 5 * terms.largest_weight


def test_a_plan_says_the_smallest_amounts_that_are_stated_and_what_they_need():
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, weight="seconds", most_weight=600)
    words = rounds_in_words(plan)
    first, needed, step = (
        int(each.replace(",", "")) for each in re.findall(r"(?:is|about|are about) ([0-9,]*[0-9])", words)[-3:]
    )
    terms = plan.terms_of_round(len(plan.units_of_rounds) - 1, 10**6, plan.schedule.horizon)
    sums = terms.threshold + plan.looks.spacing * np.arange(3)
    _, amounts = levels_and_sizes(np.append(sums, sums - 1), terms.threshold, plan, terms, 600)
    assert amounts[0] == first == 5 * 600
    assert np.abs(amounts[:3] - (first + step * np.arange(3))).max() <= 2
    assert amounts[4] == amounts[0], "in steps"
    assert needed * terms.largest_weight <= terms.threshold * 600 < (needed + 1) * terms.largest_weight


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight": "seconds"}, "must be given together"),
        ({"most_weight": 600}, "must be given together"),
        ({"weight": ""}, "must be given together"),
        ({"weight": "", "most_weight": 600}, "weight must name a column"),
        ({"weight": "seconds", "most_weight": 0}, "most_weight must be"),
        ({"weight": "seconds", "most_weight": 10**9 + 1}, "most_weight must be"),
        ({"weight": "seconds", "most_weight": 0.5}, "most_weight must be"),
        ({"weight": "a=b", "most_weight": 600}, "without '='"),
        ({"weight": "seconds", "most_weight": 600, "by": {"country": ("DE",)}}, "weight cannot be used with by"),
        ({"by": {"seconds<": ("600",)}}, "without '<' at the end"),
        ({"weight": "seconds", "most_weight": 600, "rounds": False}, "weight needs rounds over blocks"),
        ({"weight": "seconds", "most_weight": 600, "mode": "hits"}, "cannot be used with mode 'hits'"),
        ({"weight": "seconds", "most_weight": 600, "forget_after": 3}, "with rounds, which weight turns on. Leave one"),
    ],
)
def test_what_a_plan_cannot_have_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, **given)


ASKED = EventFields(facets=(f"seconds<={MOST}",))
# What the reader of each format has, and how much counts.
NUMBERS = [(0, 0), (60, 60), (0.5, 0.5), (600, MOST), (10**15, MOST), (1e300, MOST), (-60, 0), (-0.001, 0), (None, 0)]
TEXTS = [(".5", 0.5), ("6e1", 60), ("+60", 60), ("-60", 0), ("1e999", 0), ("nan", 0), ("inf", 0), ("", 0), ("60 s", 0)]
ODD = [(True, 0), (["60"], 0), ({"seconds": 60}, 0)]


def parts_of(amounts):
    return [math.floor(Fraction(amount) * FULL_VALUE / MOST) for amount in amounts]


def test_every_format_reads_the_same_weight(tmp_path):
    """Numbers, texts and others each as a column of their own; where a format has one type for each value, together."""
    columns = {"numbers": NUMBERS, "texts": TEXTS, "whole": [(60, 60), (-60, 0), (None, 0), (10**15, MOST)]}
    for name, cells in columns.items():
        rows = [{**event(number), "seconds": cell} for number, (cell, _) in enumerate(cells)]
        arrow = {"numbers": pa.float64(), "texts": pa.string(), "whole": pa.int64()}[name]
        table = pa.Table.from_pylist([event(number) for number in range(len(cells))])
        table = table.append_column("seconds", pa.array([cell for cell, _ in cells], arrow))
        expected = parts_of([amount for _, amount in cells])
        pa.parquet.write_table(table, tmp_path / "log.parquet", use_dictionary=["seconds"])
        pa.parquet.write_table(table, tmp_path / "plain.parquet", use_dictionary=False)
        pa.csv.write_csv(table, tmp_path / "log.csv")
        many = rows * 20  # Arrow reads many lines, and a few are read one by one
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in many))
        write_avro(
            tmp_path / "log.avro", rows, ["null", {"numbers": "double", "texts": "string", "whole": "long"}[name]]
        )
        for path in sorted(tmp_path.iterdir()):
            (chunk,) = find_log_chunks([str(path)], ASKED)
            found = amounts_of_blocks(read_log_chunk(chunk, ASKED))
            assert found == expected * (len(found) // len(expected)), f"{name} in {path.name}"
        for of_memory in (table, table.to_pandas(), encoded(table)):
            assert amounts_of_blocks(read_table(of_memory, ASKED)) == expected, f"{name} in a {type(of_memory)}"


def test_values_of_several_types_count_each_as_in_a_column_of_its_own(tmp_path):
    cells = [*NUMBERS, *TEXTS, *ODD, (10**400, 0)]
    rows = [{**event(number), "seconds": cell} for number, (cell, _) in enumerate(cells)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = [(cell, amount) for cell, amount in [*NUMBERS, *TEXTS, *ODD[:1]]]
    mixed = [{**event(number), "seconds": cell} for number, (cell, _) in enumerate(small)]
    write_avro(tmp_path / "log.avro", mixed, ["null", "long", "double", "string", "boolean"])
    for name, of_cells in (("log.jsonl", cells), ("log.avro", small)):
        (chunk,) = find_log_chunks([str(tmp_path / name)], ASKED)
        assert amounts_of_blocks(read_log_chunk(chunk, ASKED)) == parts_of([amount for _, amount in of_cells]), name


@pytest.mark.parametrize(
    ("arrow_type", "cells", "expected"),
    [
        (pa.float32(), [0.5, float("nan"), float("inf")], [0.5, 0, 0]),
        (pa.uint64(), [2**64 - 1, 1, None], [MOST, 1, 0]),
        (pa.decimal128(9, 2), [None, 1, 2], [0, 1, 2]),
        (pa.null(), [None] * 3, [0, 0, 0]),
        (pa.bool_(), [True, False, None], None),
        (pa.duration("us"), [1, 2, None], None),
        (pa.timestamp("us"), [1, 2, None], None),
        (pa.list_(pa.float64()), [[1.0], [], None], None),
    ],
    ids=str,
)
def test_columns_of_other_types(tmp_path, arrow_type, cells, expected):
    """None: a type that has no numbers is refused by name, with what to do."""
    table = pa.Table.from_pylist([event(number) for number in range(3)])
    table = table.append_column("seconds", pa.array(cells, arrow_type))
    pa.parquet.write_table(table, tmp_path / "log.parquet")

    def of_file():
        (chunk,) = find_log_chunks([str(tmp_path / "log.parquet")], ASKED)
        return read_log_chunk(chunk, ASKED)

    for read in (lambda: read_table(table, ASKED), of_file):
        if expected is not None:
            assert amounts_of_blocks(read()) == parts_of(expected)
            continue
        with pytest.raises(EventFileError, match=r"'seconds' has type .*\. Convert it: .*\.dt\.total_seconds\(\)"):
            amounts_of_blocks(read())


HOSTILE = [
    "1e400",
    "9" * 400,
    "-1",
    "NaN",
    "Infinity",
    '"12"',
    '"x"',
    '""',
    "true",
    "null",
    "[1e400]",
    '{"seconds": 3}',
]


@pytest.mark.parametrize("cell", [*HOSTILE, '1, "seconds": 2', '1, "other": 2'])
def test_no_row_of_one_user_changes_what_others_have(tmp_path, cell):
    """Also where it makes Arrow refuse the block."""
    rows = [json.dumps({**event(number), "seconds": number % 700 / 4}) + "\n" for number in range(400)]
    hostile = json.dumps({**event(0), "user": "x"})[:-1] + f', "seconds": {cell}}}\n'
    for place in (0, 5, 399):
        (tmp_path / "log.jsonl").write_text("".join([*rows[:place], hostile, *rows[place:]]))
        (chunk,) = find_log_chunks([str(tmp_path / "log.jsonl")], ASKED)
        batch = concatenate([block.batch for block in read_log_chunk(chunk, ASKED) if len(block.batch)])
        others = np.array(batch.user.to_pylist()) != "x"
        assert batch.facets[others, 0].tolist() == parts_of([number % 700 / 4 for number in range(400)])


def event(number):
    return {"user": f"u{number}", "item": "a", "timestamp": "2026-01-01T00:00:00"}


def encoded(table):
    return table.set_column(3, "seconds", table.column("seconds").dictionary_encode())


def write_avro(path, rows, kind):
    fields = [{"name": name, "type": "string"} for name in ("user", "item", "timestamp")]
    schema = {"type": "record", "name": "Event", "fields": [*fields, {"name": "seconds", "type": kind}]}
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows)


def amounts_of_blocks(blocks):
    return concatenate([block.batch for block in blocks if len(block.batch)]).facets[:, 0].tolist()
