"""Every table of columns against a dict of its rows: packed, cut, merged and selected; and bytes that are damaged."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.core.columns import pack_arrays, unpack_arrays
from dp_transforms.core.contribution_counters import HitEntries
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems, NamedItems
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.tables import Table
from dp_transforms.core.user_budgets import BudgetEntries

KEYS = StreamKeys(bytes(range(32)), run_id="r", plan_fingerprint="p", stream="s", threshold=5)
ONE = 1 << 128
Rows = dict[Any, Any]  # what tells a row apart -> what else is in it


@dataclasses.dataclass(frozen=True)
class Case:
    """keys, values: what rows hold. build: a table of these rows, rows_of its inverse. join: of rows that coincide."""

    keys: st.SearchStrategy[Any]
    values: st.SearchStrategy[Any]
    build: Callable[[Rows], Table]
    rows_of: Callable[[Any], Rows]
    join: Callable[[Any, Any], Any]


def numbers(values, dtype="int64"):
    return np.array(list(values), dtype=dtype)


def table_of(labels):
    labels = sorted(set(labels))
    table, places = ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)
    return table, dict(zip(labels, places.tolist(), strict=True))


def build_cells(kind, rows, columns):
    table, place = table_of(label for _, label in rows)
    keys = sorted(rows, key=lambda key: (key[0], place[key[1]]))
    windows, items = numbers(window for window, _ in keys), numbers(place[label] for _, label in keys)
    return kind(windows=windows, items=items, table=table, **columns([rows[key] for key in keys]))


def cells_of(cells, values):
    labels = cells.table.labels.to_pylist()
    keys = list(zip(cells.windows.tolist(), cells.items.tolist(), strict=True))
    assert keys == sorted(set(keys))
    assert {item for _, item in keys} == set(range(len(labels))), "a table of the items of its cells alone"
    assert cells.hashes.tolist() == [cells.table.hashes[item].tolist() for _, item in keys]
    return {(window, labels[item]): value for (window, item), value in zip(keys, values, strict=True)}


def build_contributions(rows):
    table, place = table_of(label for _, _, label in rows)
    users = sorted({user for user, _, _ in rows})
    codes = [(users.index(user), window, place[label]) for user, window, label in rows]
    codes.sort(key=lambda row: (row[1], row[2], row[0]))
    columns = [numbers(row[at] for row in codes) for at in range(3)]
    return Contributions(numbers(users, "uint64"), *columns, table)


def contributions_of(pairs):
    rows = {"codes": pairs.codes.tolist(), "windows": pairs.windows.tolist(), "items": pairs.items.tolist()}
    ordered = list(zip(*(rows[name] for name in pairs.ORDER), strict=True))
    assert ordered == sorted(set(ordered))
    assert len(set(rows["codes"])) == len(pairs.users) == len(pairs.counts)
    assert len(set(rows["items"])) == len(pairs.table)
    users, labels = pairs.users.tolist(), pairs.table.labels.to_pylist()
    assert users == sorted(set(users))
    return {(users[code], window, labels[item]): True for code, window, item in zip(*rows.values(), strict=True)}


def build_holders(rows):
    def columns(cells):
        held = [user for cell in cells for user in sorted(cell)]
        return {"counts": numbers(map(len, cells)), "holders": numbers(held, "uint64")}

    return build_cells(ItemHolders, rows, columns)


def holders_of(cells):
    held = cells.holders.tolist()
    found = [frozenset(held[low:high]) for low, high in zip(cells.splits[:-1], cells.splits[1:], strict=True)]
    assert [*map(len, found)] == cells.counts.tolist()
    return cells_of(cells, found)


def build_sums(rows):
    def columns(values):
        digests = numbers((divmod(digest, 2**64) for _, digest in values), "uint64").reshape(-1, 2)
        return {"sums": numbers(total for total, _ in values), "digests": digests}

    return build_cells(ItemSums, rows, columns)


def sums_of(sums):
    digests = [high << 64 | low for high, low in sums.digests.tolist()]
    return cells_of(sums, list(zip(sums.sums.tolist(), digests, strict=True)))


def build_named(rows):
    def columns(values):
        levels, sizes = (numbers(value[at] for value in values) for at in (0, 1))
        return {"levels": levels, "at_least_users": sizes}

    return build_cells(NamedItems, rows, columns)


def build_known(rows):
    table, place = table_of(rows)
    return FollowedItems(table, numbers(rows[label] for label in sorted(rows, key=place.__getitem__)))


def build_purses(rows):
    columns = [numbers((rows[user][at] for user in sorted(rows)), dtype) for at, dtype in enumerate(["i8", "u4", "u4"])]
    return BudgetEntries(numbers(sorted(rows), "uint64"), *columns)


def purses_of(entries):
    columns = (entries.left.tolist(), entries.tests.tolist(), entries.first_windows.tolist())
    assert entries.users.tolist() == sorted(set(entries.users.tolist()))
    return dict(zip(entries.users.tolist(), zip(*columns, strict=True), strict=True))


def newest(one, other):
    return tuple(which(pair) for which, pair in zip((min, max, min), zip(one, other, strict=True), strict=True))


user = st.sampled_from([0, 7, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 40)
window = st.integers(0, 5) | st.sampled_from([300, 2**31 - 1])
label = st.sampled_from([*"abcdefgh", "é", "long " * 60])
cell, pair = st.tuples(window, label), st.tuples(user, window, label)
word = st.integers(0, 2**32 - 1)
purse = st.tuples(st.integers(0, 2**62), word, word)
CASES = {
    "contributions": Case(pair, st.just(True), build_contributions, contributions_of, max),
    "holders": Case(cell, st.frozensets(user, max_size=4), build_holders, holders_of, frozenset.union),
    "sums": Case(
        cell,
        st.tuples(st.sampled_from([0, 2**32 - 1, 2**32]) | st.integers(0, 10**15), st.integers(0, ONE - 1)),
        build_sums,
        sums_of,
        lambda one, other: (one[0] + other[0], (one[1] + other[1]) % ONE),
    ),
    "named": Case(
        cell,
        st.just((1, 3)) | st.just((2, 70_000)),
        build_named,
        lambda named: cells_of(named, list(zip(named.levels.tolist(), named.at_least_users.tolist(), strict=True))),
        lambda one, other: one,
    ),
    "known": Case(
        label,
        window,
        build_known,
        lambda known: dict(zip(known.table.labels.to_pylist(), known.last_named.tolist(), strict=True)),
        max,
    ),
    "purses": Case(user, purse, build_purses, purses_of, newest),
    "hits": Case(
        user,
        word,
        lambda rows: HitEntries(
            numbers(sorted(rows), "uint64"), numbers((rows[user] for user in sorted(rows)), "uint32")
        ),
        lambda hits: dict(zip(hits.users.tolist(), hits.hits.tolist(), strict=True)),
        max,
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def drawn(data, case):
    return data.draw(st.dictionaries(case.keys, case.values, max_size=24))


@each_case
@given(data=st.data(), order=st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_parts_are_packed_and_merged_in_any_order(case, data, order):
    parts = [drawn(data, case) for _ in range(data.draw(st.integers(1, 4)))]
    if case is CASES["holders"]:  # parts have different users
        parts = [
            {key: frozenset(user ^ (at << 50) for user in held) for key, held in part.items()}
            for at, part in enumerate(parts)
        ]
    if case is CASES["named"]:  # parts have different cells
        parts = [{key: value for key, value in part.items() if len(key[1]) % 4 == at} for at, part in enumerate(parts)]
    expected = {}
    for part in parts:
        for key, value in part.items():
            expected[key] = case.join(expected[key], value) if key in expected else value
    blobs = [case.build(part).to_bytes() for part in parts]
    kind = type(case.build(parts[0]))
    order.shuffle(blobs)
    merged = kind.merge([kind.from_bytes(blob) for blob in blobs])
    assert case.rows_of(merged) == expected
    assert len(merged) == len(expected)
    if case not in (CASES["holders"], CASES["sums"]):  # else it would be of other users
        again = kind.merge([merged, *(kind.from_bytes(blob) for blob in blobs), merged])
        assert case.rows_of(again) == expected, "a part that is there twice changes nothing"


@each_case
@given(data=st.data(), most_bytes=st.sampled_from([1, 300, 1000, 10**6]))
@settings(max_examples=15)
def test_messages_are_small_and_hold_every_row_once(case, data, most_bytes):
    rows = drawn(data, case)
    table = case.build(rows)
    kind = type(table)
    assert case.rows_of(table) == rows
    assert kind.from_bytes(table.to_bytes()).to_bytes() == table.to_bytes()
    messages = list(table.messages(most_bytes))
    parts = [kind.from_bytes(message) for message in messages]
    assert case.rows_of(kind.merge(parts)) == rows
    for part, message in zip(parts, messages, strict=True):
        assert len(part) >= 1
        is_smallest = len(part) == 1 and (not isinstance(part, ItemHolders) or len(part.holders) <= 1)
        assert len(message) <= most_bytes or is_smallest
    if not isinstance(table, ItemHolders) and parts:
        assert sum(map(len, parts)) == len(table)
        assert max(map(len, parts)) <= 2 * min(map(len, parts)) + 1 or most_bytes > 1, "halves of halves"
    cells = table.to_chunks()
    assert (cells == [table.to_bytes()]) if rows else not cells


@each_case
@given(data=st.data())
@settings(max_examples=15)
def test_rows_are_selected_with_what_they_name_alone(case, data):
    table = case.build(drawn(data, case))
    rows = list(case.rows_of(table).items())
    chosen = numbers((data.draw(st.booleans()) for _ in rows), "bool")
    low, high = sorted((data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))))
    for found, expected in (
        (table.select(chosen), [row for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen]),
        (table.select(np.flatnonzero(chosen)), [row for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen]),
        (table.select(slice(low, high)), rows[low:high]),
    ):
        assert list(case.rows_of(found).items()) == expected


@pytest.mark.parametrize("name", ["holders", "sums", "named"])
@given(data=st.data(), windows=st.integers(1, 4), shards=st.integers(1, 4))
@settings(max_examples=15)
def test_cells_are_cut_by_window_and_by_shard_of_items(name, data, windows, shards):
    case = CASES[name]
    cells = case.build(drawn(data, case))
    rows = case.rows_of(cells)
    low_words = {label: int(KEYS.hash_items(pa.array([label]))[0, 1]) for _, label in rows}
    for parts, place in (
        (cells.by_range(windows), lambda window, label: window // windows),
        (cells.by_shard(shards), lambda window, label: low_words[label] % shards),
        (((at, cells.select(which)) for at, which in cells.by_window()), lambda window, label: window),
    ):
        found = {at: case.rows_of(part) for at, part in parts}
        assert [*found] == sorted(found)
        assert found == {
            at: {key: value for key, value in rows.items() if place(*key) == at} for at in {place(*key) for key in rows}
        }


def test_large_states_are_cut_into_chunks_below_10_megabytes():
    """Of at most 16 bytes for each user who has paid hits, and 24 for each who has paid tests."""
    many = 1_000_000
    users = np.arange(many, dtype=np.uint64) * np.uint64(9_223_372_036_854) + np.uint64(1)
    ones = np.ones(many, np.uint32)
    table, places = ItemTable.of_labels(pa.array([f"{n:07d}" + "x" * 60 for n in range(150_000)]), KEYS.hash_items)
    for entries, bytes_of_each in (
        (HitEntries(users, ones), 16),
        (BudgetEntries(users, np.full(many, 7), ones, ones), 24),
        (FollowedItems(table, places), 100),
    ):
        chunks = entries.to_chunks()
        assert len(chunks) > 1
        assert max(map(len, chunks)) < 10_000_000
        assert sum(map(len, chunks)) <= bytes_of_each * len(entries) + 1000
        assert type(entries).of_messages(reversed(chunks)).to_bytes() == entries.to_bytes()


@each_case
def test_no_rows_are_a_table_too(case):
    kind = type(case.build({}))
    for nothing in (
        kind.none(),
        kind.merge([]),
        kind.merge([kind.none()] * 2),
        kind.from_bytes(kind.none().to_bytes()),
    ):
        assert len(nothing) == 0
        assert case.rows_of(nothing) == {}
        assert [*nothing.messages()] == nothing.to_chunks() == []


LARGE = {
    "contributions": {(user, window, label): True for user in (3, 9) for window in (2, 4) for label in "ab"},
    "holders": {(window, label): {3, 9} for window in (2, 4) for label in "ab"},
    "sums": {(window, label): (5, 7) for window in (2, 4) for label in "ab"},
    "named": {(window, label): (1, 3) for window in (2, 4) for label in "ab"},
    "known": {"a": 3, "b": 4},
    "purses": dict.fromkeys((3, 9), (5, 6, 7)),
    "hits": {3: 1, 9: 2},
}
WRONG = {"left": -1, "sums": -1}


@pytest.mark.parametrize("name", CASES)
def test_damaged_bytes_are_refused(name):
    table = CASES[name].build(LARGE[name])
    kind, good = type(table), unpack_arrays(table.to_bytes())
    kinds = [name for name, column in kind.SCHEMA.items() for _ in column.kinds]
    assert len(kinds) == len(good)
    damages = []
    for number, column in enumerate(kinds):
        array = good[number]
        damages += [(number, array[:-1]), (number, array[:0])]
        damages += [(number, array.astype(dtype)) for dtype in ("u1", "u2", "u4", "u8") if array.dtype == "i8"]
        if column == "windows":
            damages.append((number, np.full(len(array), 2**31, "u4")))
        if column in kind.ORDER and column not in ("codes", "items", "windows"):
            damages += [(number, array[::-1].copy()), (number, np.zeros_like(array))]
        if kind.SCHEMA[column].into is not None:
            damages += [(number, array + array.dtype.type(3))]
        if column in WRONG:
            damages.append((number, np.full(len(array), WRONG[column], "i8")))
        if column == "users":
            damages += [(number, array[::-1].copy()), (number, array[[0, 0]]), (number, array.astype("i8"))]
    for number, damaged in damages:
        if np.array_equal(damaged, good[number]) and damaged.dtype == good[number].dtype:
            continue
        if kinds[number] == "sums" and damaged.dtype.kind == "u":
            continue  # any width is read
        with pytest.raises(ValueError, match="damaged"):
            kind.from_bytes(pack_arrays(*good[:number], damaged, *good[number + 1 :]))
    with pytest.raises(ValueError, match="not packed arrays of this version"):
        kind.from_bytes(b"SHH0" + table.to_bytes()[4:])
    for data in (table.to_bytes()[:-1], table.to_bytes() + b"\0", pack_arrays(*good, good[0])):
        with pytest.raises(ValueError, match="damaged"):
            kind.from_bytes(data)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_bytes_that_an_engine_hands_back_changed_are_refused_or_a_table(name, data):
    """Whichever byte it is: no error but a ValueError, and what is read can be used."""
    table = CASES[name].build(LARGE[name])
    packed = table.to_bytes()
    at, new = data.draw(st.integers(0, len(packed) - 1)), data.draw(st.binary(min_size=1, max_size=9))
    try:
        found = type(table).from_bytes(packed[:at] + new + packed[at + len(new) :])
    except ValueError:
        return
    assert type(table).merge([found, table]).to_bytes()


@given(st.lists(st.tuples(st.sampled_from(["u1", "u2", "u4", "i8", "u8"]), st.integers(0, 5)), max_size=6))
def test_arrays_are_packed_and_unpacked(shapes):
    arrays = [np.arange(length).astype(f"<{kind}") * np.dtype(kind).type(37) for kind, length in shapes]
    again = unpack_arrays(pack_arrays(*arrays))
    assert [array.dtype for array in again] == [array.dtype for array in arrays]
    assert all(np.array_equal(one, other) for one, other in zip(again, arrays, strict=True))


def test_labels_that_are_not_text_or_not_there_are_refused():
    hashes, offsets = np.arange(4, dtype=np.uint64), np.array([0, 1, 3], dtype=np.uint32)

    def labels_of(text, offsets=offsets):
        return ItemTable.from_arrays(hashes, offsets, np.frombuffer(text, dtype=np.uint8)).labels.to_pylist()

    assert labels_of("aé".encode()) == ["a", "é"]
    for text, wrong in ((b"a\xff\xff", offsets), (b"a", offsets), (b"abc", offsets[:0]), (b"abc", offsets[:2])):
        with pytest.raises(ValueError, match="packed arrays are damaged"):
            labels_of(text, wrong)
