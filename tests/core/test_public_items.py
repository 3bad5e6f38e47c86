"""Public lists of items: what is read, what is refused, and how a worker looks items up."""

import dataclasses
import hashlib

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.core import public_items
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule


def plan_of(public):
    schedule = WindowSchedule.fixed(0, 3600, 60)
    return Plan.for_hits(epsilon=2, delta=1e-6, schedule=schedule, public_items=public)


def keys(run_id="run", secret=bytes(32)):
    return StreamKeys(secret, run_id=run_id, plan_fingerprint="plan", stream="s", threshold=5)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (b"pear\napple\npear\n", ["apple", "pear"]),
        (b"\n\n pear \n\r\npear\r\n", [" pear ", "pear"]),
        (b"\xef\xbb\xbf7\n007", ["007", "7"]),
        ("é\ne\u0301\n\u2028\x0b\n".encode(), ["e\u0301", "é", "\u2028\x0b"]),
        (b"a\rb\nb\x00\n", ["a\rb", "b\x00"]),
    ],
)
def test_lines_are_items(text, items):
    public = PublicItems.of_text(text, "items.txt")
    assert public.labels.to_pylist() == sorted(items, key=str.encode)
    assert public.size == len(items)
    assert public.fingerprint == PublicItems.of_ids(items[::-1] * 2).fingerprint
    assert public.fingerprint == fingerprint_of(items)


def fingerprint_of(items):
    encoded = sorted(item.encode() for item in items)
    return hashlib.sha256(b"".join(len(item).to_bytes(4, "little") for item in encoded) + b"".join(encoded)).hexdigest()


def test_what_is_no_id_is_refused():
    for ids, message in (
        ([], "must hold 1 to"),
        ([None, "a"], "none of them missing"),
        (["a", "x" * 20_000], "1 to 16,384 bytes"),
        (pa.array([True]), "must be text or whole numbers"),
        ([True, "a"], "must be one column of text"),
    ):
        with pytest.raises(ValueError, match=message):
            PublicItems.of_ids(ids)
    for text, line in (b"x" * 16_385 + b"\na", 1), (b"a\n" + b"x" * 16_385, 2):
        with pytest.raises(ValueError, match=f"items.txt must hold ids of at most 16,384 bytes; line {line} is longer"):
            PublicItems.of_text(text, "items.txt")
    with pytest.raises(ValueError, match=r"none of them missing\. Use PublicItems\.of_ids"):
        PublicItems(["a"])


def test_ids_are_texts_in_the_order_of_their_bytes_whatever_they_were():
    assert PublicItems.of_ids([7, "8", 9]).labels.to_pylist() == ["7", "8", "9"]
    assert PublicItems.of_ids(pa.array([9, 7])).labels.to_pylist() == ["7", "9"]
    assert PublicItems(pa.array(["é", "\U0001f600", "a", "Z", "a"])).labels.to_pylist() == ["Z", "a", "é", "\U0001f600"]


def test_size_limits(monkeypatch, tmp_path):
    monkeypatch.setattr(public_items, "MOST_PUBLIC_ITEMS", 3)
    assert PublicItems.of_text(b"a\nb\nc\na\n", "f").size == 3
    with pytest.raises(ValueError, match="f must hold 1 to 3 different items, got 4"):
        PublicItems.of_text(b"a\nb\nc\nd\n", "f")
    monkeypatch.setattr(public_items, "MOST_PUBLIC_BYTES", 1 << 20)
    path = tmp_path / "items.txt"
    path.write_bytes(b"a\n" * (1 << 19) + b"b")
    with pytest.raises(ValueError, match="must have at most 1 MB"):
        PublicItems.read(str(path))


def test_items_that_share_a_high_word_are_told_apart():
    held = np.array([[1, 5], [7, 1], [7, 3], [7, 9], [2**64 - 1, 0]], dtype=np.uint64)
    table = ItemTable.with_labels(held, pa.array(list("abcde")))
    asked = {(1, 5): True, (1, 6): False, (7, 0): False, (7, 1): True, (7, 3): True, (7, 9): True, (7, 8): False}
    asked |= {(0, 5): False, (2**64 - 1, 0): True, (2**64 - 1, 1): False, (8, 0): False}
    assert table.contains(np.array(list(asked), dtype=np.uint64)).tolist() == list(asked.values())


def test_workers_get_the_public_items_of_the_plan_or_an_error(tmp_path):
    public = PublicItems.of_ids(["a", "b"])
    plan, path = plan_of(public), tmp_path / "items.txt"
    path.write_text("b\na\n")
    for given in (public, path, str(path)):
        source = PublicItemsSource.of_plan(given, plan)
        table = source.table(keys())
        assert sorted(table.labels.to_pylist()) == ["a", "b"]
        assert source.table(keys("another run")) is table, "made once a process and key"
    path.write_text("b\na\nc\n")  # changed after the pipeline was built
    later = dataclasses.replace(PublicItemsSource.of_plan(public, plan), items=str(path))
    with pytest.raises(ValueError, match=r"the list \(3 items\) is not that of the plan \(2 items\)"):
        later.table(keys(secret=bytes([1]) * 32))


def test_each_key_has_a_table_of_its_own():
    """One transform that is applied to several pipelines draws a key for each of them."""
    public = PublicItems.of_ids([f"item {number}" for number in range(300)])
    source = PublicItemsSource.of_plan(public, plan_of(public))
    for byte in (1, 2, 1, 3):  # the first one again, after another
        run = keys(secret=bytes([byte]) * 32)
        assert source.table(run).contains(run.hash_items(public.labels)).all()
    assert not source.table(keys()).contains(run.hash_items(public.labels)).any()


def test_the_size_that_a_plan_states_is_compared_too():
    """It enters the share of sampling, the expected false reports and the bound on max_items."""
    public = PublicItems.of_ids([f"item {number}" for number in range(1000)])
    plan = plan_of(public)
    tampered = dataclasses.replace(plan, public_items=dataclasses.replace(plan.public_items, size=999))
    with pytest.raises(ValueError, match=r"the list \(1,000 items\) is not that of the plan"):
        PublicItemsSource.of_plan(public, tampered)


def test_a_large_list_travels_as_a_path(tmp_path):
    path = tmp_path / "items.txt"
    path.write_text("\n".join(f"{number:01000}" for number in range(5_100)))
    public = PublicItems.read(path)
    plan = plan_of(public)
    with pytest.raises(ValueError, match=r"at most 5 MB, got 5\.1 MB\. Write it to a file, .* and give its path"):
        ShiftingHeavyHitters(plan, public_items=public)
    ShiftingHeavyHitters(plan, public_items=path)
    small = PublicItems(public.labels[:4_900])
    ShiftingHeavyHitters(plan_of(small), public_items=small)


@pytest.mark.parametrize(
    ("of_plan", "given", "message"),
    [
        (None, PublicItems.of_ids(["a"]), "the plan has no public items"),
        (["a"], None, r"1 public items. Give public_items=PATH"),
        (["a"], PublicItems.of_ids(["b"]), "is not that of the plan"),
        (["a"], ["a"], "public_items must be a path or PublicItems, got a list"),
        (["a"], "no such file", "no such file cannot be read"),
    ],
)
def test_the_transform_complains_when_it_is_built(of_plan, given, message):
    plan = plan_of(of_plan and PublicItems.of_ids(of_plan))
    with pytest.raises(ValueError, match=message):
        ShiftingHeavyHitters(plan, public_items=given)
