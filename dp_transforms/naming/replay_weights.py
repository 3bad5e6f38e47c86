"""The weights of a replay: each user spends its purse evenly on all its pairs of the run (docs/purse.md, section 1).

Guarantee: the looks of a user never cost more than a full purse, and its weights depend on its own events alone. That
they depend on its later events too is no harm: the log is fixed, and nothing in it can react to a report.
"""

from __future__ import annotations

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.user_pairs import UserPairs
from dp_transforms.naming.item_sums import ItemSums
from dp_transforms.naming.kept_pairs import keep_by_hash
from dp_transforms.naming.naming_settings import NamingSettings


def weigh_replay(pairs: UserPairs, settings: NamingSettings, keys: StreamKeys) -> ItemSums:
    """What these users add to their items. ``pairs`` must contain all pairs of its users in the whole run.

    A user with n pairs has in each the largest weight of which a full purse, less what counts may cost it, pays n. Of
    more pairs than it pays for (`most_looks` without counts) so many count, chosen by keyed hash.
    """
    if not len(pairs):
        return ItemSums.none()
    in_run = np.diff(pairs.splits)
    purses = settings.purse - settings.paid_for_counts(in_run)
    looks = np.minimum(in_run, purses // settings.units[0])
    weights = settings.weights_for(purses // looks)[pairs.user_codes()]
    kept = keep_by_hash(pairs, looks, keys)
    return ItemSums.of_weights(pairs, np.where(kept, weights, 0), keys)
