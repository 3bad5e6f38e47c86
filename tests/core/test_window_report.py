"""What is said of an item in words, and the order in which items are released."""

import random

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, release_order

SIZES = {
    HeavyHitter("i", None, 1234): "about 1,234",
    HeavyHitter("i", BETWEEN, -7): "about -7",
    HeavyHitter("i", None, None, 2, 4321): "at least 4,321",
    HeavyHitter("i", None, None, 1, 0): "",  # which says nothing
    HeavyHitter("i", ABOVE, None): "above",
    HeavyHitter("i", None, None): "",
}


def test_a_size_is_said_as_far_as_it_is_published():
    assert {hitter: hitter.size_in_words for hitter in SIZES} == SIZES


def test_items_come_above_first_then_by_level_size_count_and_label_whatever_their_order_was():
    ordered = [
        HeavyHitter("z", ABOVE, None),
        HeavyHitter("y", None, None, 3, 9),
        HeavyHitter("x", None, None, 2, 90),
        HeavyHitter("w", None, None, 2, 8),
        HeavyHitter("a", BETWEEN, 12),
        HeavyHitter("b", BETWEEN, 12),
        HeavyHitter("0", BETWEEN, 11),
    ]
    assert sorted(random.Random(1).sample(ordered, len(ordered)), key=release_order) == ordered
