"""A replay by hits publishes what the oracle publishes, however it is cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.hit_noise import digests_of_groups
from tests.helpers.core_runs import EVENT, busy_log, monitor_settings, replayed
from tests.helpers.small_runs import SECRET
from tests.reference.hits import oracle_transcript
from tests.reference.log import integer_of


@given(
    log=st.lists(EVENT, max_size=120) | st.integers(0, 99).map(lambda seed: busy_log(seed, 150)),
    mode=st.sampled_from(["hits-with-counts", "hits", "kms21"]),
    public=st.sampled_from([(), ("c", "b", "nobody's", "0", "", "é"), ("i0", "i2", *map(str, range(50)))]),
    limit=st.sampled_from([1, 3]),
    sliding=st.sampled_from([1, 3]),
    epsilon=st.sampled_from([0.5, 1.1, 2.0]),
    threshold=st.integers(3, 8),
    hits=st.integers(1, 3),
    shards=st.integers(1, 7),
    batch_size=st.integers(1, 130),
)
def test_core_equals_oracle(log, mode, public, limit, sliding, epsilon, threshold, hits, shards, batch_size):
    chosen = monitor_settings(mode, limit, sliding, epsilon=epsilon, threshold=threshold, hits=hits, public=public)
    found = replayed(log, chosen, shards=shards, batch_size=batch_size, public=public)
    assert found == oracle_transcript(log, chosen, SECRET, public).reports


def test_digests_are_sums_and_an_empty_group_has_none():
    members = np.array([[1, 5], [2**64 - 1, 2**64 - 1], [7, 7]], dtype=np.uint64)
    found = digests_of_groups(members, np.array([0, 0, 2, 2, 3, 3]))
    assert [integer_of(row) for row in found] == [0, (1 << 64) + 4, 0, (7 << 64) + 7, 0]
    assert digests_of_groups(members[:0], np.array([0, 0])).tolist() == [[0, 0]]
