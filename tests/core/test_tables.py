"""Every table of columns against a dict of its rows: packed, cut, merged and selected; and bytes that are damaged."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.core.columns import narrowest, pack_arrays, unpack_arrays
from dp_transforms.core.contribution_counters import HitEntries
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems, NamedItems
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.user_budgets import BudgetEntries

KEYS = StreamKeys(bytes(range(32)), run_id="r", plan_fingerprint="p", stream="s", threshold=5)
Rows = dict[Any, Any]  # what tells a row apart -> what else is in it


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of table. keys, values: the columns by which its rows are told apart, the others, and what is in them: in
    the place of items their labels, of codes users. join: of what two rows that coincide have in each other column."""

    kind: type[Any]
    keys: dict[str, st.SearchStrategy[Any]]
    values: dict[str, st.SearchStrategy[Any]] = dataclasses.field(default_factory=dict)
    join: tuple[Callable[[Any, Any], Any], ...] = (max,)

    def rows(self) -> st.SearchStrategy[Rows]:
        return st.dictionaries(st.tuples(*self.keys.values()), st.tuples(*self.values.values()), max_size=24)

    def joined(self, one: Any, other: Any) -> Any:
        return tuple(join(*both) for join, *both in zip(self.join, one, other, strict=False))

    def build(self, rows: Rows) -> Any:
        columns = {name: [key[at] for key in rows] for at, name in enumerate(self.keys)}
        columns |= {name: [value[at] for value in rows.values()] for at, name in enumerate(self.values)}
        of_items = "items" if "items" in columns else "table"
        labels = sorted(set(columns.get(of_items, [])))
        table, places = ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)
        users = sorted(set(columns.get("codes", [])))
        for name, things in ((of_items, dict(zip(labels, places.tolist(), strict=True))), ("codes", users)):
            if name in columns:
                columns[name] = [things[one] if name == of_items else things.index(one) for one in columns[name]]
        order = [columns[name] for name in self.kind.ORDER or self.keys]
        ranked = sorted(range(len(rows)), key=lambda row: [column[row] for column in order])
        columns = {name: [column[row] for row in ranked] for name, column in columns.items()}
        if "codes" in columns:
            columns["users"] = users
        if "holders" in columns:
            columns["counts"] = list(map(len, columns["holders"]))
            columns["holders"] = [user for holders in columns["holders"] for user in sorted(holders)]
        if "digests" in columns:
            columns["digests"] = [divmod(digest, 2**64) for digest in columns["digests"]]
        made = {}
        for name, column in self.kind.SCHEMA.items():
            dtype = np.int64 if len(column.stored) > 1 else column.stored[0]
            shape = (-1, column.width) if column.width > 1 else -1
            made[name] = table if name == "table" else np.array(columns[name], dtype).reshape(shape)
        return self.kind(**made)

    def rows_of(self, table: Any) -> Rows:
        """The inverse of `build`, in order; and all users and items of the table have a row."""
        columns = {name: getattr(table, name).tolist() for name in self.kind.SCHEMA if name != "table"}
        order = [*zip(*(columns[name] for name in self.kind.ORDER), strict=True)]
        assert order == sorted(set(order))
        if "table" in self.kind.SCHEMA:
            columns["table"] = table.table.labels.to_pylist()
        for name, things in (("items", "table"), ("codes", "users")):
            if name in columns:
                assert set(columns[name]) == set(range(len(columns[things])))
                columns[name] = [columns[things][place] for place in columns[name]]
        if "holders" in columns:
            held = columns["holders"]
            columns["holders"] = [frozenset(held[low:high]) for low, high in itertools.pairwise(table.splits.tolist())]
            assert [*map(len, columns["holders"])] == columns["counts"]
        if "digests" in columns:
            columns["digests"] = [high << 64 | low for high, low in columns["digests"]]
        keys = zip(*(columns[name] for name in self.keys), strict=True)
        return {key: tuple(columns[name][at] for name in self.values) for at, key in enumerate(keys)}


def added(one: int, other: int) -> int:
    return (one + other) % 2**128


user = st.sampled_from([0, 7, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 40)
window = st.integers(0, 5) | st.sampled_from([300, 2**31 - 1])
label = st.sampled_from([*"abcdefgh", "é", "long " * 60])
word, total = st.integers(0, 2**32 - 1), st.sampled_from([0, 2**32 - 1, 2**32]) | st.integers(0, 10**15)
digest, size = st.integers(0, 2**128 - 1), st.sampled_from([3, 70_000])
cell, by_user = {"windows": window, "items": label}, {"users": user}
of_budget = {"left": st.integers(0, 2**62), "tests": word, "first_windows": word}
CASES = {
    "contributions": Case(Contributions, {"codes": user, **cell}),
    "holders": Case(ItemHolders, cell, {"holders": st.frozensets(user, max_size=4)}, (frozenset.union,)),
    "sums": Case(ItemSums, cell, {"sums": total, "digests": digest}, (added, added)),
    "named": Case(NamedItems, cell, {"levels": st.integers(1, 2), "at_least_users": size}, (max, max)),
    "followed": Case(FollowedItems, {"table": label}, {"last_named": window}),
    "budgets": Case(BudgetEntries, by_user, of_budget, (min, max, min)),
    "hits": Case(HitEntries, by_user, {"hits": word}),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
@given(data=st.data(), order=st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_parts_are_packed_and_merged_in_any_order(case, data, order):
    parts = [data.draw(case.rows()) for _ in range(data.draw(st.integers(1, 4)))]
    if case is CASES["holders"]:  # parts have different users
        parts = [
            {key: (frozenset(user ^ (at << 50) for user in held),) for key, (held,) in part.items()}
            for at, part in enumerate(parts)
        ]
    if case is CASES["named"]:  # parts have different cells
        parts = [{key: value for key, value in part.items() if len(key[1]) % 4 == at} for at, part in enumerate(parts)]
    expected = {}
    for part in parts:
        for key, value in part.items():
            expected[key] = case.joined(expected[key], value) if key in expected else value
    blobs = [case.build(part).to_bytes() for part in parts]
    kind = case.kind
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
    rows = data.draw(case.rows())
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
    table = case.build(data.draw(case.rows()))
    rows = list(case.rows_of(table).items())
    chosen = np.array([data.draw(st.booleans()) for _ in rows], dtype=np.bool_)
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
    cells = case.build(data.draw(case.rows()))
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
    kind = case.kind
    for nothing in (kind.none(), kind.merge([]), kind.merge([kind.none()] * 2)):
        assert kind.from_bytes(nothing.to_bytes()).to_bytes() == nothing.to_bytes()
        assert len(nothing) == 0
        assert case.rows_of(nothing) == {}
        assert [*nothing.messages()] == nothing.to_chunks() == []


SMALL = {
    "contributions": {(user, window, label): () for user in (3, 9) for window in (2, 4) for label in "ab"},
    "holders": {(window, label): ({3, 9},) for window in (2, 4) for label in "ab"},
    "sums": {(window, label): (5, 7) for window in (2, 4) for label in "ab"},
    "named": {(window, label): (1, 3) for window in (2, 4) for label in "ab"},
    "followed": {("a",): (3,), ("b",): (4,)},
    "budgets": {(3,): (5, 6, 7), (9,): (5, 6, 7)},
    "hits": {(3,): (1,), (9,): (2,)},
}


def test_numbers_are_packed_as_narrow_as_they_are():
    for bits, dtype in ((8, "u1"), (16, "u2"), (32, "u4"), (62, "i8")):
        assert narrowest(np.array([0, 2**bits - 1])).dtype == dtype
        assert bits > 32 or narrowest(np.array([2**bits])).dtype != dtype


@pytest.mark.parametrize("name", CASES)
def test_damaged_bytes_are_refused(name):
    table = CASES[name].build(SMALL[name])
    kind, good = type(table), unpack_arrays(table.to_bytes())
    columns = [(name, column) for name, column in kind.SCHEMA.items() for _ in column.kinds]
    for number, ((column, schema), array) in enumerate(zip(columns, good, strict=True)):
        damages = [array[:-1], array[:0]]
        if array.dtype == "i8":
            damages += [
                array.astype(dtype) for dtype in ("u1", "u2", "u4", "u8") if np.dtype(dtype) not in schema.stored
            ]
        if column == "windows":
            damages.append(np.full(len(array), 2**31, "u4"))
        if column in ("left", "sums"):
            damages.append(np.full(len(array), -1, "i8"))
        if column == "users":
            damages += [array[::-1].copy(), array[[0, 0]], array.astype("i8")]
        if schema.into is not None:
            damages.append(array + array.dtype.type(3))
        for damaged in damages:
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
    table = CASES[name].build(SMALL[name])
    packed = table.to_bytes()
    at, new = data.draw(st.integers(0, len(packed) - 1)), data.draw(st.binary(min_size=1, max_size=9))
    try:
        found = type(table).from_bytes(packed[:at] + new + packed[at + len(new) :])
    except ValueError:
        return
    assert type(table).merge([found, table]).to_bytes()


def test_labels_that_are_not_text_or_not_there_are_refused():
    hashes, offsets = np.arange(4, dtype=np.uint64), np.array([0, 1, 3], dtype=np.uint32)

    def labels_of(text, offsets=offsets):
        return ItemTable.from_arrays(hashes, offsets, np.frombuffer(text, dtype=np.uint8)).labels.to_pylist()

    assert labels_of("aé".encode()) == ["a", "é"]
    for text, wrong in ((b"a\xff\xff", offsets), (b"a", offsets), (b"abc", offsets[:0]), (b"abc", offsets[:2])):
        with pytest.raises(ValueError, match="packed arrays are damaged"):
            labels_of(text, wrong)
