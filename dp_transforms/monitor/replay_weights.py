"""The weights of a replay: each user spends its purse evenly on all its pairs of the run (docs/guarantee.md,
"Weights").

Guarantee: the looks of a user, and the hits that it can have on the hits list, never cost more than a full purse; its
weights and its list depend on its own events alone. That they depend on its later events too is no harm: the log is
fixed, and nothing in it can react to a report.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.item_holders import ItemHolders, terms_of
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.pairs import ItemPairs, UserPairs, keep_by_hash
from dp_transforms.plan.plan import Plan


class ReplayChoice(NamedTuple):
    """For u users. looks: how many of its pairs count. weights: of each of these. pays_hits: whether the user is on the
    hits list. int64[u], int64[u], bool[u]."""

    looks: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]
    pays_hits: npt.NDArray[np.bool_]


def choose_replay(pairs: npt.NDArray[np.int64], plan: Plan) -> ReplayChoice:
    """pairs: how many pairs each user has in the whole run, at least 1, int64[u].

    A user with n pairs has in each the largest weight of which a full purse pays n; on the hits list, what is left of
    it when all hits are paid. It takes the list that gives it more, and in a tie the looks list. Of more than
    `most_looks` pairs so many count.
    """
    listed, hits = plan.paid_looks.listed, plan.paid_hits
    looks = np.minimum(pairs, PURSE_UNITS // listed.units[0])
    weights, _ = listed.largest(PURSE_UNITS // looks)
    if hits is None:
        return ReplayChoice(looks, weights, np.zeros(len(looks), dtype=np.bool_))
    on_hits_list, _ = hits.listed.largest((PURSE_UNITS - hits.units_of_all) // looks)
    return ReplayChoice(looks, np.maximum(weights, on_hits_list), on_hits_list > weights)


def weigh_replay(pairs: UserPairs | ItemPairs, plan: Plan, keys: StreamKeys) -> ItemSums:
    """What these users add to their items, where users pay for looks alone. ``pairs`` must contain all pairs of its
    users in the whole run. Which pairs count is chosen by keyed hash."""
    looks, weights, _ = choose_replay(pairs.counts, plan)
    kept = keep_by_hash(pairs, looks, keys)
    return ItemSums.of_weights(pairs, weights[pairs.codes] * kept, keys)


def weigh_replay_with_hits(pairs: UserPairs | ItemPairs, plan: Plan, keys: StreamKeys) -> ItemHolders:
    """The same holder by holder, where users may pay for hits."""
    looks, weights, pays_hits = choose_replay(pairs.counts, plan)
    kept = keep_by_hash(pairs, looks, keys)
    return ItemHolders.of_terms(pairs, terms_of(weights, pays_hits)[pairs.codes] * kept)
