"""The weights of a replay: each user spends its purse evenly on all its pairs of the run (docs/guarantee.md,
"Weights").

Guarantee: the looks of a user never cost more than a full purse; its weights depend on its own events alone. That they
depend on its later events too is no harm: the log is fixed, and nothing in it can react to a report.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.pairs import ItemPairs, UserPairs, keep_by_hash
from dp_transforms.plan.plan import Plan


class ReplayChoice(NamedTuple):
    """For u users. looks: how many of its pairs count. weights: of each of these. Both int64[u]."""

    looks: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]


def choose_replay(pairs: npt.NDArray[np.int64], plan: Plan) -> ReplayChoice:
    """pairs: how many pairs each user has in the whole run, at least 1, int64[u].

    A user with n pairs has in each the largest weight of which a full purse pays n. Of more than `most_looks` pairs so
    many count.
    """
    listed = plan.paid_looks.listed
    looks = np.minimum(pairs, PURSE_UNITS // listed.units[0])
    weights, _ = listed.largest(PURSE_UNITS // looks)
    return ReplayChoice(looks, weights)


def weigh_replay(pairs: UserPairs | ItemPairs, plan: Plan, keys: StreamKeys) -> ItemSums:
    """What these users add to their items. ``pairs`` must contain all pairs of its users in the whole run. Which pairs
    count is chosen by keyed hash."""
    looks, weights = choose_replay(pairs.counts, plan)
    kept = keep_by_hash(pairs, looks, keys)
    return ItemSums.of_weights(pairs, weights[pairs.codes] * kept, keys)
