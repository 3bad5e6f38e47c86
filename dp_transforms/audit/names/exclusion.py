"""Users who have no hits left: the real code must name an item as if they did not hold it.

In each copy a group of users pays for hits, and shares items that are likely to be hits, as many as each of them may
have; then they alone hold one more item. If all were hits, nobody counts there any more. If one was not, all count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dp_transforms.audit.names.copies import Whole, name_pairs, pairs_of_numbers, settings_of_scene
from dp_transforms.audit.names.mechanism import NamesMechanism
from dp_transforms.audit.names.noise_law import NoiseLaw
from dp_transforms.audit.names.scenes import Cell, Scene
from dp_transforms.audit.statistics import binomial_p_value
from dp_transforms.monitor.naming_settings import NamingSettings

_PAIRS = 200_000
_MOST_COPIES = 300
_GROUP = 5.0  # what it adds, in scales: far more than any noise
_HIT = 0.9
_MISSED = 0.3  # scales by which it is above the threshold


def exclusion_p_values(
    mechanism: NamesMechanism, settings: NamingSettings, law: NoiseLaw, runs: int, secret: bytes
) -> Iterator[tuple[str, float]]:
    """Of the tests, each with its name."""
    listed = mechanism.hits_list
    assert listed is not None
    hits = listed.hits
    looks = max(hits + 1, settings.hits_from)
    weight, chosen = mechanism.replay_choice(looks)
    if chosen != listed:
        return
    group = max(2, math.ceil(_GROUP * law.scale / weight))
    threshold = group * weight - math.ceil(_MISSED * law.scale)
    # With them, a shared item is a hit with about this probability, and next to never above.
    heaviest = mechanism.replay_choice(1)[0]
    others = max(0, round((threshold + law.smallest_margin(1 - _HIT) - group * weight) / heaviest))
    copies = max(1, min(runs, _MOST_COPIES, _PAIRS // (group * looks)))
    cells = (Cell(0, 0, others, True), Cell(1, hits, 0, True))
    known = max(1, min(threshold, law.smallest_margin(1e-3)))
    scene = Scene("users without hits left", cells, threshold, known, 0, mechanism.spacing, is_domain=False)
    run = settings_of_scene(settings, scene, copies, "exclusion")
    keys = run.stream_keys(secret)
    users, windows, numbers = _rows(copies, group, looks, hits, others)
    named = np.zeros((copies, 2), dtype=np.int64)
    charged = np.zeros(copies, dtype=np.int64)
    items = hits + 1 + group * (looks - hits - 1)
    for part in name_pairs(
        pairs_of_numbers(users.astype(np.uint64), windows, numbers, keys), run, keys, None, in_order=False
    ):
        copy, item = np.divmod(part.numbers, items)
        np.add.at(charged, copy[(item < hits) & (part.levels == 1)], 1)
        np.add.at(named[:, 0], copy[(item < hits)], 1)
        np.add.at(named[:, 1], copy[item == hits], 1)
    excluded = charged == hits
    name = "users without hits left"
    yield name, 1.0 if not named[excluded, 1].any() else 0.0
    counting = int(np.count_nonzero(~excluded))
    yield (
        f"{name}, before the last hit",
        binomial_p_value(int(named[~excluded, 1].sum()), counting, law.tail(threshold - group * weight)),
    )
    shared = group * weight + others * heaviest
    yield f"{name}, hits", binomial_p_value(int(named[:, 0].sum()), copies * hits, law.tail(threshold - shared))


def _rows(copies: int, group: int, looks: int, hits: int, others: int) -> tuple[Whole, Whole, Whole]:
    """Users, windows and items: shared items 0 .. hits - 1, the last item `hits`, and for each user some of its own."""
    own = looks - hits - 1
    items = hits + 1 + group * own
    copy = np.arange(copies)[:, None, None]
    user = np.arange(group)[None, :, None]
    shared = np.broadcast_to(np.arange(hits + 1), (copies, group, hits + 1))
    alone = np.broadcast_to(hits + 1 + user * own + np.arange(own), (copies, group, own))
    of_group = np.concatenate([shared, alone], axis=2)
    users = np.broadcast_to(1 + copy * group + user, of_group.shape)
    windows = (of_group == hits).astype(np.int64)
    numbers = of_group + copy * items
    singles = np.broadcast_to(np.arange(hits)[None, :, None] + copy * items, (copies, hits, others)).reshape(-1)
    first = 1 + copies * group
    return (
        np.concatenate([users.reshape(-1), first + np.arange(len(singles))]),
        np.concatenate([windows.reshape(-1), np.zeros(len(singles), dtype=np.int64)]),
        np.concatenate([numbers.reshape(-1), singles]),
    )
