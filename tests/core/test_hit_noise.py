"""What one noisy count leads to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.core.hit_noise import Release, ReleaseRule

counts = st.integers(-(10**6), 10**6)


@given(threshold=st.integers(1, 1000), width=st.integers(1, 200), count=counts | st.integers(-2, 1201))
@settings(deadline=None)
def test_a_zone_is_charged_and_what_is_above_it_is_named_without_a_count(threshold, width, count):
    release = ReleaseRule(threshold, width)(count)
    if count < threshold:
        assert release is None
    elif count <= threshold + width - 1:
        assert release == Release("between", count, True)
    else:
        assert release == Release("above", None, False), "a count above the zone has been paid by nobody"


@pytest.mark.parametrize("width", [1, 3])
def test_the_edges_of_the_zone(width):
    zones = [release and release.zone for release in map(ReleaseRule(10, width), range(9, 15))]
    assert zones == [None, *["between"] * width, *["above"] * (5 - width)]


@pytest.mark.parametrize("with_counts", [True, False])
@given(threshold=st.integers(-1000, 1000), distance=st.integers(-3, 3) | counts)
@settings(deadline=None)
def test_without_a_zone_all_that_reaches_the_threshold_is_charged(with_counts, threshold, distance):
    count = threshold + distance
    expected = Release(None, count if with_counts else None, True) if distance >= 0 else None
    assert ReleaseRule(threshold, with_counts=with_counts)(count) == expected
