"""The state of a run as a file: what is written is read, what is changed in it is found."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from dp_transforms.core.contribution_counters import HitEntries
from dp_transforms.core.named_items import FollowedItems
from dp_transforms.core.planned_run import RunPart
from dp_transforms.core.state_chunks import (
    BUCKETS,
    Kind,
    chunks_by_bucket,
    hit_bound_chunk,
)
from dp_transforms.core.steps import NameItems
from dp_transforms.core.user_budgets import BudgetEntries
from dp_transforms.runs.fingerprints import sealing_key
from dp_transforms.runs.records import StateError
from dp_transforms.runs.state_file import FORMAT_VERSION, StateFile, StateHeader, StoredPart, hold_state, write_state
from dp_transforms.stores.local_files import create_new
from tests.helpers.killed_nights import in_a_process
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import SECRET, small_plan
from tests.helpers.state_entries import KEYS, followed_of

HEADER = StateHeader("run-1", 3)
KEY = sealing_key(SECRET)


def entries_of(users):
    """A purse for each of these users, of made-up numbers."""
    draws = np.random.default_rng(0)
    users = np.unique(np.asarray(users, dtype=np.uint64))
    size = len(users)
    looks, last = (draws.integers(1, most, size).astype(np.uint32) for most in (9, 3))
    return BudgetEntries(users, draws.integers(0, 1000, size), looks, last)


def written(path, header=HEADER):
    """A state with cells of each kind."""
    users = np.random.default_rng(1).integers(0, 2**63, 500, dtype=np.uint64)
    entries, known = entries_of(users), followed_of([f"item {n}" for n in range(90)], np.arange(90) % 3)
    cells = [
        *((Kind.HITS, *cell) for cell in chunks_by_bucket(HitEntries(entries.users, entries.tests))),
        (Kind.HIT_BOUND, 0, hit_bound_chunk(7)),
        *((Kind.FOLLOWED, *cell) for cell in chunks_by_bucket(known)),
        *((Kind.USER_BUDGETS, *cell) for cell in chunks_by_bucket(entries)),
    ]
    write_state(path, header, cells, KEY)
    return entries, known


def content_of(state):
    return state.header, [(row.kind, row.bucket, state.chunk(row)) for row in state.rows]


@pytest.mark.parametrize("shards", [1, 3, 64, 100])
def test_what_is_written_is_read_by_shard(tmp_path, shards):
    entries, known = written(tmp_path / "state")
    state = StateFile(tmp_path / "state")
    assert state.header == HEADER
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    part = StoredPart(3, 5, state_path=str(tmp_path / "state"), state_fingerprint=state.fingerprint)
    assert part.hit_bound == 7
    for shard in range(shards):
        held = entries.users % np.uint64(shards) == shard
        found = BudgetEntries.merge(part.entries(Kind.USER_BUDGETS, shard, shards))
        assert found.users.tolist() == entries.users[held].tolist()
        assert found.left.tolist() == entries.left[held].tolist()
        stored = HitEntries.merge(part.entries(Kind.HITS, shard, shards))
        assert (stored.users.tolist(), stored.hits.tolist()) == (found.users.tolist(), entries.tests[held].tolist())
    found = [FollowedItems.merge(part.entries(Kind.FOLLOWED, shard, shards)) for shard in range(shards)]
    labels = {
        label: last for one in found for label, last in zip(one.table.labels.to_pylist(), one.last_named, strict=False)
    }
    assert labels == dict(zip(known.table.labels.to_pylist(), known.last_named, strict=True))
    assert sum(map(len, found)) == len(known)


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    written(tmp_path / "a")
    written(tmp_path / "b")
    written(tmp_path / "c", dataclasses.replace(HEADER, run_id="run-2"))
    written(tmp_path / "d", dataclasses.replace(HEADER, closed_through=4))
    write_state(tmp_path / "e", HEADER, [(Kind.HIT_BOUND, 0, hit_bound_chunk(7))], KEY)
    write_state(tmp_path / "f", HEADER, [(Kind.HIT_BOUND, 0, hit_bound_chunk(8))], KEY)
    a, b, *others = (StateFile(tmp_path / name).fingerprint for name in "abcdef")
    assert a == b
    assert len({a, *others}) == 5


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small state: its path, its bytes and its content."""
    path = tmp_path_factory.mktemp("small") / "state"
    cells = [
        (Kind.HIT_BOUND, 0, hit_bound_chunk(7)),
        *((Kind.USER_BUDGETS, *cell) for cell in chunks_by_bucket(entries_of([3, 4]))),
    ]
    write_state(path, HEADER, cells, KEY)
    return path, path.read_bytes(), content_of(StateFile(path))


def content_or_error(path, content):
    """What is read of these bytes, or the words of the error."""
    path.write_bytes(content)
    try:
        return content_of(StateFile(path))
    except StateError as error:
        return str(error)


def test_a_chunk_that_was_changed_is_refused(small):
    path, whole, (_, rows) = small
    cell = max((cell for _, _, cell in rows), key=len)
    for at in range(0, len(cell), 5):
        place = whole.index(cell) + at
        changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        assert "it is damaged or cut" in content_or_error(path, changed)


def test_a_state_that_is_cut_while_it_is_open_is_an_error(tmp_path):
    """And not the end of the process, as it is for a file that is mapped."""
    written(tmp_path / "state")
    state = StateFile(tmp_path / "state")

    def work():
        os.truncate(state.path, 0)
        content_of(state)

    was_killed, said = in_a_process(work)
    assert (was_killed, "damaged or cut" in said) == (False, True)


def parts_of(path):
    """The chunks of a state, its index, and its seal with the length of the index."""
    data = path.read_bytes()
    size = int.from_bytes(data[-40:-32], "little")
    return data[: -40 - size], data[-40 - size : -40], data[-40:]


def forge(path, *parts):
    """A state of these parts."""
    with create_new(path, 0o600) as file:
        file.write(b"".join(parts))
    return StateFile(path)


def test_chunks_of_two_files_do_not_make_a_third(tmp_path):
    for name, bound in (("poor", 1), ("rich", 9)):
        write_state(tmp_path / name, HEADER, [(Kind.HIT_BOUND, 0, hit_bound_chunk(bound))], KEY)
    (poor, *of_poor), (rich, *of_rich) = parts_of(tmp_path / "poor"), parts_of(tmp_path / "rich")
    mixed = forge(tmp_path / "mixed", rich, *of_poor)
    with pytest.raises(StateError, match="damaged"):
        mixed.chunk(mixed.rows[0])
    with pytest.raises(StateError, match="not sealed"):
        forge(tmp_path / "sealed", rich, of_rich[0], of_poor[1]).check_seal(KEY)
    with pytest.raises(StateError, match="damaged"):
        forge(tmp_path / "longer", poor, poor, *of_poor)


def test_another_version_and_open_modes_are_refused(tmp_path):
    written(tmp_path / "state")
    (tmp_path / "state").chmod(0o604)
    with pytest.raises(StateError, match=r"used by others \(mode 0604\).*chmod 600"):
        StateFile(tmp_path / "state")
    for changes in ({"version": FORMAT_VERSION + 1}, {"closed_through": -1}, {"run_id": 7}):
        written(tmp_path / "other", dataclasses.replace(HEADER, **changes))
        with pytest.raises(StateError, match="or not a state of this version of shh"):
            StateFile(tmp_path / "other")
        (tmp_path / "other").unlink()
    with pytest.raises(StateError, match="cannot be read: No such file"):
        StateFile(tmp_path / "nowhere")


def test_a_state_that_cannot_be_written_leaves_nothing(tmp_path):
    def cells():
        yield Kind.HIT_BOUND, 0, hit_bound_chunk(1)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_state(tmp_path / "draft", HEADER, cells(), KEY)
    assert not list(tmp_path.iterdir())
    written(tmp_path / "state")
    with pytest.raises(FileExistsError):
        write_state(tmp_path / "state", HEADER, [], KEY)
    write_state(tmp_path / "draft", HEADER, [], KEY)
    opened = StateFile(tmp_path / "state")
    os.replace(tmp_path / "draft", tmp_path / "state")
    assert opened.rows
    assert len(content_of(opened)[1]) == len(opened.rows)  # what is open stays whole
    assert not StateFile(tmp_path / "state").rows


def test_a_seal_is_of_one_key_and_one_content(tmp_path):
    written(tmp_path / "state")
    state = StateFile(tmp_path / "state")
    state.check_seal(KEY)
    with pytest.raises(StateError, match="not sealed with this noise key"):
        state.check_seal(sealing_key(SECRET + b"x"))
    for index_of in (lambda index: index.replace(b'"run-1"', b'"run-2"'), lambda index: index + b" "):
        chunks, index, end = parts_of(tmp_path / "state")
        changed = index_of(index)
        forged = tmp_path / f"forged {len(changed)}"
        with pytest.raises(StateError, match="not sealed"):
            forge(forged, chunks, changed, len(changed).to_bytes(8, "little"), end[8:]).check_seal(KEY)


def test_one_process_at_a_time_holds_a_state(tmp_path):
    """Until it ends, however it ends."""
    program = (
        "import sys, time\nfrom dp_transforms.runs.state_file import hold_state\n"
        "with hold_state(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(100)"
    )
    path = str(tmp_path / "state")
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(StateError, match="another process works on it"), hold_state(path):
                pass
        finally:
            other.kill()
            other.wait()
    with hold_state(path), pytest.raises(StateError), hold_state(path):
        pass
    (tmp_path / ".linked.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StateError, match="cannot be made"), hold_state(tmp_path / "linked"):
        pass
    assert not (tmp_path / "victim").exists()


def test_a_chunk_of_another_bucket_is_refused(tmp_path):
    """With right checksums: what no run can have written."""
    entries = entries_of([64, 128])
    known = followed_of(["a", "b"], [1, 2])
    chunks = {Kind.USER_BUDGETS: entries, Kind.HITS: HitEntries(entries.users, entries.tests), Kind.FOLLOWED: known}
    for kind, table in chunks.items():
        bucket, chunk = next(chunks_by_bucket(table))
        for place in (bucket, (bucket + 1) % BUCKETS):
            path = str(tmp_path / f"{kind} {place}")
            write_state(path, HEADER, [(kind, place, chunk)], KEY)
            part = StoredPart(3, 5, state_path=path, state_fingerprint=StateFile(path).fingerprint)
            if place == bucket:
                assert part.entries(kind)
                continue
            with pytest.raises(ValueError, match="damaged"):
                part.entries(kind)


def test_a_part_without_a_state_carries_nothing():
    part = RunPart.whole(small_plan().schedule)
    assert (part.first, part.end, part.windows) == (0, 12, 12)
    assert [part.entries(kind) for kind in (Kind.USER_BUDGETS, Kind.HITS, Kind.FOLLOWED)] == [[], [], []]
    assert part.hit_bound == 0


def test_items_that_were_named_in_later_windows_are_refused():
    step = NameItems(small_looks_plan(12, forget_after=4), KEYS)
    assert len(step.restore([followed_of(["a", "b"], [1, 2])], 3).items) == 2
    for last_named in ([1, 3], [-1, 2]):
        with pytest.raises(ValueError, match="damaged"):
            step.restore([followed_of(["a", "b"], last_named)], 3)
