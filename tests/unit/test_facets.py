"""Facets: named items that are looked at once more by declared values of columns (docs/guarantee.md, "Facets")."""

import dataclasses
import functools
import json
import random
from collections import defaultdict

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from dp_transforms import Plan
from dp_transforms.logs import EventFields, find_log_chunks, read_log_chunk
from dp_transforms.logs.tables import read_table
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.monitor.event_batch import EventBatch, concatenate
from dp_transforms.monitor.window_report import Facet, release_order
from tests.helpers.facet_runs import OF_FACETS, PERCENTS, Run, by_hash, trial_of_labels
from tests.helpers.naming_oracle import reports_of
from tests.helpers.rounds_oracle import FacetsOracle
from tests.helpers.rounds_runs import SCHEDULE, WINDOWS, at, busy_log, named_in_blocks
from tests.helpers.small_runs import SECRET

LABELS = ("country=DE", "country=FR", "device=phone", "device=desk", "device=tv")  # nobody has the last one
_FEW_FOR_WINDOWS = (70, 4, 4, 2)


trial_with_facets = functools.partial(trial_of_labels, LABELS)


def log_with_facets(seed):
    """Users have one country, or none of the declared ones, and change their devices. A crowd comes once."""
    draws = random.Random(seed)
    country = defaultdict(lambda: draws.choice((0, 1, 1, 2)))
    crowd = [(f"once-{number}", "topic-1", at(3)) for number in range(80)]
    log = [*busy_log(seed), *crowd]
    return [(user, item, time, (country[user], draws.choice((3, 3, 4)))) for user, item, time in log]


def facets_of(named):
    """Window, item and number of each facet that is named: its size."""
    labels = named.table.labels.to_pylist()
    columns = (named.windows, named.items, named.facets, named.at_least_users)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {(window, labels[item], facet): users for window, item, facet, users in rows if facet}


def with_facets(reports, oracle, trial):
    found = {}
    for entry in oracle.facets:
        (item, number), start = entry.item, trial.schedule.window_start_micros(entry.window)
        facet = Facet(*LABELS[number - 1].split("="), entry.at_least_users)
        found.setdefault((start, item), []).append((number, facet))
    whole = []
    for report in reports:
        hitters = []
        for each in report.heavy_hitters:
            facets = tuple(facet for _, facet in sorted(found.get((report.window_start, each.item), ())))
            users = max([each.at_least_users, *(facet.at_least_users for facet in facets)])
            hitters.append(each._replace(facets=facets, at_least_users=users))
        whole.append(report._replace(heavy_hitters=sorted(hitters, key=release_order)))
    return whole


@pytest.mark.parametrize(
    ("seed", "sliding", "percents"), [(32, 1, PERCENTS), (8, 3, PERCENTS), (3, 3, _FEW_FOR_WINDOWS)]
)
def test_the_stages_name_what_the_reference_says_however_items_are_cut(seed, sliding, percents):
    trial, log = trial_with_facets(sliding=sliding, percents=percents), log_with_facets(seed)
    oracle = FacetsOracle(log, trial, trial.stream_keys(SECRET))
    plain = reports_of(oracle.names(), trial)
    expected = with_facets(plain, oracle, trial)
    sizes = [
        {(each.window_start, hitter.item, hitter.at_least_users) for each in reports for hitter in each.heavy_hitters}
        for reports in (plain, expected)
    ]
    assert (sizes[0] != sizes[1]) is (percents == _FEW_FOR_WINDOWS), "facets imply more than windows show"
    assert {entry.item[1] for entry in oracle.facets} >= {1, 3, 4}
    assert percents == _FEW_FOR_WINDOWS or any(entry.nobody for entry in oracle.facets), (
        "facets that nobody holds are drawn for"
    )
    assert any(entry.at_least_users for entry in oracle.facets)
    for shards in (1, 3):
        run = Run(log, trial, shards)
        assert run.reports(trial) == expected
        assert [run.drawn] == oracle.drawn_facets


def test_a_user_never_pays_more_than_the_purse_of_facets_and_its_weights_are_its_own():
    """It has several facets of each of many pairs, more than the purse pays for."""
    trial = trial_with_facets()
    labels = [str(number) for number in range(200)]
    log = [("busy", item, at(0), (1 + number % 2, 3 + number % 2)) for item in labels for number in range(2)]
    others = [(f"user-{number}", str(number % 3), at(0), (1, 3)) for number in range(20)]
    told, price = (
        [named_in_blocks(trial, labels)] * OF_FACETS,
        dict(zip(trial.looks.weights, trial.looks.units, strict=True)),
    )
    alone, rest, both = (Run(each, trial, told=told).sums[-1] for each in (log, others, [*log, *others]))
    spent = sum(price[weight] for weight in alone.sums.tolist())
    assert 0.8 * trial.rounds.facets.units < spent <= trial.rounds.facets.units
    assert 0 < len(alone) < 4 * len(labels), "some of them do not count"
    assert by_hash(both) == by_hash(alone) + by_hash(rest)
    few = Run(log[:2], trial, told=told).sums[-1]
    assert few.sums.tolist() == [few.sums[0]] * 4, "one pair with two values of each column: four facets"
    assert 4 * price[int(few.sums[0])] <= trial.rounds.facets.units


def test_a_facet_is_drawn_for_whether_anybody_adds_to_it_or_not_and_with_noise_of_its_own():
    """As often as the threshold says, and what becomes of others does not follow who holds one. An item that its block
    did not name has none, whoever holds it."""
    trial = trial_with_facets(false_names=1e6)  # then one of a hundred is named by noise alone
    told = [named_in_blocks(trial, [str(number) for number in range(2000)])] * OF_FACETS
    run, held = (Run(log, trial, told=told) for log in ([], [("somebody", item, at(0), (1, 3)) for item in ("7", "x")]))
    assert run.drawn == held.drawn == len(LABELS) * 2000
    assert len(facets_of(run.found[-1])) == pytest.approx(100, rel=0.4)
    assert len(held.sums[-1]) == 2
    changed = facets_of(run.found[-1]).keys() ^ facets_of(held.found[-1]).keys()
    assert changed <= {(0, "7", 1), (0, "7", 3)}
    keys = trial.stream_keys(SECRET)
    cells = np.array([3]), np.array([[5, 6]], dtype=np.uint64), np.array([[7, 8]], dtype=np.uint64)
    drawn = {keys.round_uniforms(number)(*cells).tobytes() for number in range(OF_FACETS + 1)}
    assert len(drawn) == OF_FACETS + 1


def test_thresholds_follow_how_many_facets_are_drawn_for():
    trial = trial_with_facets(false_names=2)
    terms = [trial.terms_of_round(OF_FACETS, drawn, WINDOWS) for drawn in (10, 1000, 8000)]
    assert terms[0].threshold < terms[1].threshold < terms[2].threshold
    told = [named_in_blocks(trial, [str(number) for number in range(2000)])] * OF_FACETS
    assert len(facets_of(Run([], trial, told=told).found[-1])) <= 8  # at most 2 are expected
    assert terms[0].largest_weight == trial.looks.listed.largest(np.array([trial.rounds.facets.units]))[0][0]


# --- Plans and logs


@functools.cache
def calibrated(**choices):
    return Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, **choices)


def test_a_plan_with_facets_takes_a_fifth_of_each_purse_and_turns_on_rounds():
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, by={"country": ("DE", "FR"), "device": ("phone",)})
    assert plan.facets == ("country=DE", "country=FR", "device=phone")
    assert plan.rounds.facets.columns == ("country", "device")
    assert plan.units_of_rounds[-1] == PURSE_UNITS // 5
    assert sum(plan.units_of_rounds) <= PURSE_UNITS
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.shares.hash > calibrated(rounds=True).shares.hash
    wrong = dataclasses.replace(plan.shares, hash=calibrated(rounds=True).shares.hash)
    with pytest.raises(ValueError, match="the share hash must be"):
        dataclasses.replace(plan, shares=wrong)
    with pytest.raises(ValueError, match="must cost at most a purse together"):
        dataclasses.replace(plan.rounds, facets=dataclasses.replace(plan.rounds.facets, units=PURSE_UNITS // 4))


@pytest.mark.parametrize(
    ("by", "more", "message"),
    [
        ({"country": ("DE", "DE")}, {}, "some different values"),
        ({"country": ()}, {"rounds": True}, "some different values"),
        ({}, {}, "some different values"),
        ({"country": "DE"}, {}, "by must name the values of a column"),
        ({"a=b": ("DE",)}, {}, "without '='"),
        (dict.fromkeys("abc", ("DE",)), {}, "at most 2 columns"),
        ({"country": [*map(str, range(51))], "age": [*map(str, range(50))]}, {}, "at most 100 values, got 101"),
        ({"country": ("DE",)}, {"rounds": False}, "by needs rounds over blocks"),
        ({"country": ("DE",)}, {"mode": "hits"}, "by cannot be used with mode 'hits'"),
    ],
)
def test_what_a_plan_cannot_have_is_refused(by, more, message):
    with pytest.raises(ValueError, match=message):
        Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, by=by, **more)


def test_every_format_reads_the_same_facets(tmp_path):
    """A cell that is missing, another value, or no text is of no facet; the row counts. So where no cell is text."""
    countries = ["DE", "FR", None, "XX", "DE", ""] * 20
    rows = [
        {"user": f"u{number}", "item": "a", "timestamp": "2026-01-01T00:00:00", "age": number % 3, "country": country}
        for number, country in enumerate(countries)
    ]
    table = pa.Table.from_pylist(rows)
    pa.parquet.write_table(table, tmp_path / "log.parquet")
    pa.csv.write_csv(table, tmp_path / "log.csv")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    odd = [{**row, "country": ["DE"]} if number == 3 else row for number, row in enumerate(rows)]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in odd))
    fields = [{"name": name, "type": "string"} for name in ("user", "item", "timestamp")]
    fields += [{"name": "age", "type": "long"}, {"name": "country", "type": ["null", "string"]}]
    with (tmp_path / "log.avro").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "Event", "fields": fields}, rows)
    asked = EventFields(facets=("age=1", "country=FR", "country=DE"))
    expected = [[1 if number % 3 == 1 else 0, {"FR": 2, "DE": 3}.get(each, 0)] for number, each in enumerate(countries)]
    for path in sorted(tmp_path.iterdir()):
        (chunk,) = find_log_chunks([str(path)], asked)
        batches = [block.batch for block in read_log_chunk(chunk, asked) if len(block.batch)]
        batch = EventBatch.from_bytes(concatenate([*batches]).to_bytes())
        assert batch.facets.tolist() == expected, path.name
        assert batch.where(np.arange(len(batch)) < 5).facets.tolist() == expected[:5]


NO_TEXT = [
    (pa.null(), "null", [None, None]),
    (pa.float64(), ["null", "double"], [1.0, None]),
    (pa.bool_(), ["null", "boolean"], [True, None]),
    (pa.list_(pa.string()), {"type": "array", "items": "string"}, [["DE"], []]),
    (pa.struct({"code": pa.string()}), {"type": "map", "values": "string"}, [{"code": "DE"}, {"code": "FR"}]),
    (None, ["null", "int", "double", "string", "boolean"], [1.0, True]),
]


@pytest.mark.parametrize(("arrow_type", "avro_type", "cells"), NO_TEXT, ids=[str(each[0]) for each in NO_TEXT])
def test_a_column_without_texts_is_of_no_facet_in_every_format(tmp_path, arrow_type, avro_type, cells):
    """One type of Avro holds texts, too."""
    cells, found = (cells, [0] * 4) if arrow_type is not None else ([*cells, "DE", 1], [0, 0, 2, 1])
    cells = (cells * 2)[:4]
    rows = [{"user": "u", "item": "a", "timestamp": "2026-01-01", "by": cell} for cell in cells]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = [{"name": name, "type": "string"} for name in ("user", "item", "timestamp")]
    schema = {"type": "record", "name": "Event", "fields": [*fields, {"name": "by", "type": avro_type}]}
    with (tmp_path / "log.avro").open("wb") as file:
        fastavro.writer(file, schema, rows)
    asked = EventFields(facets=("by=1", "by=DE", "by=True", "by=1.0", "by=true"))
    if arrow_type is not None:
        table = pa.table({name: [row[name] for row in rows] for name in ("user", "item", "timestamp")})
        table = table.append_column("by", pa.array(cells, arrow_type))
        pa.parquet.write_table(table, tmp_path / "log.parquet")
        pa.parquet.write_table(table, tmp_path / "groups.parquet", row_group_size=1)
        assert first_facets(read_table(table, asked)) == found
    for path in sorted(tmp_path.iterdir()):
        (chunk,) = find_log_chunks([str(path)], asked)
        assert first_facets(read_log_chunk(chunk, asked)) == found, path.name


def first_facets(blocks):
    return concatenate([block.batch for block in blocks if len(block.batch)]).facets[:, 0].tolist()
