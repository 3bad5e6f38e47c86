"""A replay by hits publishes what the oracle publishes, however it is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.hit_noise import digests_of_groups
from tests.helpers.core_runs import EVENT, busy_log, monitor_settings, replayed
from tests.helpers.small_runs import SECRET
from tests.reference.hits import oracle_transcript
from tests.reference.log import integer_of

DOMAIN = ("i0", "i2", "i3", "i4", *(f"other-{number}" for number in range(50)))


@given(
    log=st.lists(EVENT, min_size=0, max_size=120),
    mode=st.sampled_from(["hits-with-counts", "hits", "kms21"]),
    domain=st.sampled_from([(), ("a",), ("c", "b", "nobody's", "0", "", "é"), tuple("abcdefghij")]),
    limit=st.sampled_from([1, 3]),
    sliding=st.sampled_from([1, 3]),
    epsilon=st.floats(0.5, 2),
    threshold=st.integers(3, 8),
    hits=st.integers(1, 3),
    shards=st.integers(1, 7),
    batch_size=st.integers(1, 130),
)
def test_core_equals_oracle(log, mode, domain, limit, sliding, epsilon, threshold, hits, shards, batch_size):
    chosen = monitor_settings(mode, limit, sliding, epsilon=epsilon, threshold=threshold, hits=hits, domain=domain)
    found = replayed(log, chosen, shards=shards, batch_size=batch_size, domain=domain)
    assert found == oracle_transcript(log, chosen, SECRET, domain).reports


@pytest.mark.parametrize("mode", ["hits-with-counts", "hits", "kms21"])
@pytest.mark.parametrize("domain", [(), DOMAIN])
def test_core_equals_oracle_on_busy_logs(mode, domain):
    """Users are bounded, charged, excluded and kept out, and of public items some are published that nobody holds."""
    transcripts = []
    for seed, (sliding, limit) in enumerate([(1, 1), (3, 1), (1, 3), (3, 3)]):
        log = busy_log(seed)
        chosen = monitor_settings(mode, limit, sliding, threshold=5, domain=domain, run_id=f"run {seed}")
        transcripts.append(oracle_transcript(log, chosen, SECRET, domain))
        assert replayed(log, chosen, shards=3, batch_size=70, domain=domain) == transcripts[-1].reports
    assert sum(len(found.reports) for found in transcripts) >= 5
    assert sum(len(found.bounded) for found in transcripts) >= 50
    assert sum(found.kept_out for found in transcripts) >= 10
    zones = {hitter.zone for found in transcripts for report in found.reports for hitter in report.heavy_hitters}
    assert zones == ({"above", "between"} if mode == "hits" else {None})
    assert sum(found.false_reports for found in transcripts) >= 4 * bool(domain)


def test_digests_are_sums_and_an_empty_group_has_none():
    members = np.array([[1, 5], [2**64 - 1, 2**64 - 1], [7, 7]], dtype=np.uint64)
    found = digests_of_groups(members, np.array([0, 0, 2, 2, 3, 3]))
    assert [integer_of(row) for row in found] == [0, (1 << 64) + 4, 0, (7 << 64) + 7, 0]
    assert digests_of_groups(members[:0], np.array([0, 0])).tolist() == [[0, 0]]
