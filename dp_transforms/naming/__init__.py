"""The core of release mode `names` on numpy columns: users pay for looks. Imports no Beam and no accounting.

naming_settings   the plain numbers of a plan that workers need
kept_pairs        which pairs of a user count where its purse cannot pay for all
item_sums         what the users of each item add to it in each window
replay_weights    the weights of a replay, from all pairs of each user
pace, purses      the weights of a stream, from each user's own pace, and what it has left
named_items       what was named, and what is published of it; named_messages: on its way there
look_draws        the keyed noise of sums
followed_items    known items, followed down to their lower threshold
look_noise        the same in two stages, where users pay for hits too
look_candidates   names with hits: what the sequential monitor has to look at
item_namer        the thresholds: from sums to named items
empty_items       items of a known domain that are named although nobody adds to them
"""
