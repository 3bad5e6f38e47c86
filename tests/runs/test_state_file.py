"""The state of a run as a file: what is written is read, what is changed in it is found."""

import dataclasses
import os
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.contribution_counters import HitEntries
from dp_transforms.core.named_items import FollowedItems
from dp_transforms.core.state_chunks import BUCKETS, Kind, chunks_by_bucket, hit_bound_chunk, pack_by_bucket
from dp_transforms.core.steps import NameItems
from dp_transforms.core.user_budgets import BudgetEntries
from dp_transforms.runs.fingerprints import sealing_key
from dp_transforms.runs.records import StateError
from dp_transforms.runs.state_file import (
    FORMAT_VERSION,
    StateFile,
    StateHeader,
    StoredPart,
    hold_state,
    write_next_state,
    write_state,
)
from tests.helpers.contributions_plans import small_contributions_plan
from tests.helpers.rounds_runs import KEYS, followed_of
from tests.helpers.small_runs import SECRET
from tests.runs.killed_nights import in_a_process

HEADER = StateHeader("run-1", 3)
KEY = sealing_key(SECRET)


def entries_of(users):
    """A budget for each of these users, of made-up numbers."""
    draws, users = np.random.default_rng(0), np.unique(np.asarray(users, dtype=np.uint64))
    tests, last = (draws.integers(1, most, len(users)).astype(np.uint32) for most in (9, 3))
    return BudgetEntries(users, draws.integers(0, 1000, len(users)), tests, last)


def written(path, header=HEADER, users=500):
    """A state with chunks of each kind."""
    entries = entries_of(np.random.default_rng(1).integers(0, 2**63, users, dtype=np.uint64))
    followed = followed_of([f"item {n}" for n in range(90)], np.arange(90) % 3)
    chunks = [
        *((Kind.HITS, *chunk) for chunk in chunks_by_bucket(HitEntries(entries.users, entries.tests))),
        (Kind.HIT_BOUND, 0, hit_bound_chunk(7)),
        *((Kind.FOLLOWED, *chunk) for chunk in chunks_by_bucket(followed)),
        *((Kind.USER_BUDGETS, *chunk) for chunk in chunks_by_bucket(entries)),
    ]
    write_state(path, header, chunks, KEY)
    return entries, followed


def content_of(state):
    return state.header, [(row.kind, row.bucket, state.chunk(row)) for row in state.rows]


def read(path):
    """As a part does that begins with it."""
    state = StateFile(path)
    state.check_seal(KEY)
    return content_of(state)


def bound(path, number, header=HEADER):
    """A state with one chunk."""
    write_state(path, header, [(Kind.HIT_BOUND, 0, hit_bound_chunk(number))], KEY)
    return path


@pytest.mark.parametrize("shards", [1, 3, 100])
def test_what_is_written_is_read_by_shard(tmp_path, shards):
    entries, followed = written(tmp_path / "state")
    state = StateFile(tmp_path / "state")
    assert state.header == HEADER
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    part = StoredPart(3, 5, state_path=str(tmp_path / "state"), state_fingerprint=state.fingerprint)
    assert part.hit_bound == 7
    last_named = {}
    for shard in range(shards):
        held = entries.users % np.uint64(shards) == shard
        found = BudgetEntries.merge(part.entries(Kind.USER_BUDGETS, shard, shards))
        hits = HitEntries.merge(part.entries(Kind.HITS, shard, shards))
        assert found.users.tolist() == hits.users.tolist() == entries.users[held].tolist()
        assert found.left.tolist() == entries.left[held].tolist()
        assert hits.hits.tolist() == entries.tests[held].tolist()
        items = FollowedItems.merge(part.entries(Kind.FOLLOWED, shard, shards))
        last_named |= dict(zip(items.table.labels.to_pylist(), items.last_named, strict=True))
    assert last_named == dict(zip(followed.table.labels.to_pylist(), followed.last_named, strict=True))


def test_a_part_hands_on_what_it_found_and_what_it_changed_and_no_item_that_was_named_long_ago(tmp_path):
    """Also of users and items that it does not see: a budget that was lost would be full again."""
    before, after = tmp_path / "before", tmp_path / "after"
    written(before)
    part = StoredPart(3, 5, state_path=str(before), state_fingerprint=StateFile(before).fingerprint)
    changed = pack_by_bucket([(Kind.HIT_BOUND, hit_bound_chunk(9))])
    write_next_state(after, StateHeader("run-1", 5), part, changed, 3, KEY)
    following = StoredPart(5, 6, state_path=str(after), state_fingerprint=StateFile(after).fingerprint)
    assert following.hit_bound == 9
    for kind in (Kind.HITS, Kind.USER_BUDGETS):
        assert [*following.chunks(kind, range(BUCKETS))] == [*part.chunks(kind, range(BUCKETS))] != []
    assert FollowedItems.merge(following.entries(Kind.FOLLOWED, 0, 1)).last_named.tolist() == [2] * 30


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    states = [
        *(written(tmp_path / name) and tmp_path / name for name in ("a", "b")),
        bound(tmp_path / "c", 7),
        bound(tmp_path / "d", 8),
        bound(tmp_path / "e", 7, dataclasses.replace(HEADER, run_id="run-2")),
        bound(tmp_path / "f", 7, dataclasses.replace(HEADER, closed_through=4)),
    ]
    a, b, *others = (StateFile(path).fingerprint for path in states)
    assert a == b
    assert len({a, *others}) == 5


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The path and the bytes of a state."""
    path = tmp_path_factory.mktemp("small") / "state"
    written(path, users=3)
    return path, path.read_bytes()


@given(data=st.data())
def test_a_state_in_which_any_byte_was_changed_is_refused(small, data):
    """Or left out, or added: nothing is padding."""
    path, whole = small
    at = data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 600, len(whole) - 1))
    cut, added = data.draw(st.integers(0, 40)), data.draw(st.binary(max_size=40))
    changed = whole[:at] + added + whole[at + cut :]
    path.write_bytes(changed)
    if changed == whole:
        read(path)
        return
    with pytest.raises(StateError, match=r"damaged or cut|not sealed with this noise key"):
        read(path)


@pytest.mark.parametrize("index", [b"", b"{}", b'{"header":{"x":' + b"[" * 100_000])
def test_what_is_no_state_is_refused(small, index):
    path, _ = small
    path.write_bytes(index + len(index).to_bytes(8, "little") + bytes(32))
    with pytest.raises(StateError, match="damaged or cut"):
        read(path)


def test_a_state_that_is_cut_while_it_is_open_is_an_error(tmp_path):
    """And not the end of the process, as it is for a file that is mapped."""
    written(tmp_path / "state")
    state = StateFile(tmp_path / "state")

    def work():
        os.truncate(state.path, 0)
        content_of(state)

    was_killed, said = in_a_process(work)
    assert (was_killed, "damaged or cut" in said) == (False, True)


def test_two_states_do_not_make_a_third_and_no_other_key_makes_one(tmp_path):
    """Each has its chunks, its index, and at the end the length of the index and the seal."""

    def cut(path):
        content = path.read_bytes()
        begin = len(content) - 40 - int.from_bytes(content[-40:-32], "little")
        return content[:begin], content[begin:-40], content[-40:]

    (poor, poor_index, poor_end), (rich, rich_index, rich_end) = (cut(bound(tmp_path / f"{n}", n)) for n in (1, 9))
    mixed = tmp_path / "mixed"
    mixed.touch(0o600)
    for parts in (
        (rich, poor_index, poor_end),
        (rich, rich_index, poor_end),
        (poor, poor, poor_index, poor_end),
        (rich, rich_index.replace(b'"run-1"', b'"run-2"'), rich_end),
    ):
        mixed.write_bytes(b"".join(parts))
        with pytest.raises(StateError, match=r"damaged|not sealed"):
            read(mixed)
    with pytest.raises(StateError, match="not sealed with this noise key"):
        StateFile(tmp_path / "9").check_seal(sealing_key(SECRET + b"x"))


def test_another_version_and_open_modes_are_refused(tmp_path):
    written(tmp_path / "state")
    (tmp_path / "state").chmod(0o604)
    with pytest.raises(StateError, match=r"others can use it \(mode 0604\).*chmod 600"):
        StateFile(tmp_path / "state")
    for number, changes in enumerate(({"version": FORMAT_VERSION + 1}, {"closed_through": -1}, {"run_id": 7})):
        other = bound(tmp_path / f"{number}", 7, dataclasses.replace(HEADER, **changes))
        with pytest.raises(StateError, match="or not a state of this version of shh"):
            StateFile(other)
    with pytest.raises(StateError, match="cannot be read: No such file"):
        StateFile(tmp_path / "nowhere")


def test_a_state_that_cannot_be_written_leaves_nothing_and_none_is_written_over(tmp_path):
    def chunks():
        yield Kind.HIT_BOUND, 0, hit_bound_chunk(1)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_state(tmp_path / "draft", HEADER, chunks(), KEY)
    assert not list(tmp_path.iterdir())
    bound(tmp_path / "state", 1)
    with pytest.raises(FileExistsError):
        bound(tmp_path / "state", 2)
    opened, before = StateFile(tmp_path / "state"), read(tmp_path / "state")
    os.replace(bound(tmp_path / "draft", 2), tmp_path / "state")
    assert content_of(opened) == before != read(tmp_path / "state"), "what is open stays whole"


def test_one_process_at_a_time_holds_a_state(tmp_path):
    """Until it ends, however it ends."""
    path = str(tmp_path / "state")

    def hold(dies=False):
        with hold_state(path):
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)

    with hold_state(path):
        assert "it cannot be locked" in in_a_process(hold)[1]
        with pytest.raises(StateError, match="it cannot be locked"):
            hold()
    assert in_a_process(lambda: hold(dies=True)) == (True, "")
    assert in_a_process(hold) == (False, "")
    (tmp_path / ".linked.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StateError, match="it cannot be locked"), hold_state(tmp_path / "linked"):
        pass
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("kind", [Kind.USER_BUDGETS, Kind.HITS, Kind.FOLLOWED])
def test_a_chunk_of_another_bucket_is_refused(tmp_path, kind):
    """With right checksums: what no run can have written."""
    entries = entries_of([64, 128])
    table = {Kind.USER_BUDGETS: entries, Kind.HITS: HitEntries(entries.users, entries.tests)}.get(kind)
    bucket, chunk = next(chunks_by_bucket(table or followed_of(["a", "b"], [1, 2])))
    for place in (bucket, (bucket + 1) % BUCKETS):
        path = str(tmp_path / f"{place}")
        write_state(path, HEADER, [(kind, place, chunk)], KEY)
        part = StoredPart(3, 5, state_path=path, state_fingerprint=StateFile(path).fingerprint)
        if place == bucket:
            assert part.entries(kind)
            continue
        with pytest.raises(ValueError, match="damaged"):
            part.entries(kind)


def test_items_that_were_named_in_later_windows_are_refused():
    step = NameItems(small_contributions_plan(12, forget_after=4), KEYS)
    assert len(step.restore([followed_of(["a", "b"], [1, 2])], 3).items) == 2
    for last_named in ([1, 3], [-1, 2]):
        with pytest.raises(ValueError, match="damaged"):
            step.restore([followed_of(["a", "b"], last_named)], 3)
