"""How much the users of a log do: the number of distinct pairs (window, item) of each.

Used before a run, to declare its usual looks (`accounting.activity`). What comes out is about single users and must not
be published; `noisy_histogram` makes something of it that may.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.noise_table import discrete_laplace
from dp_transforms.mechanisms.randomness import IdHasher, Words, derive_key
from dp_transforms.monitor.equal_rows import group_starts, sort_distinct
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.plan.window_schedule import WindowSchedule


class ActivityCounter:
    """Counts the distinct pairs (window, item) of each user over the batches of a log, in any order.

    schedule: the windows; events outside its range are left out, and counted in `outside`.
    secret: at least 32 fresh random bytes. Users are keyed 128-bit hashes: two of them are taken for one with a
        probability of at most 2^-128 for each pair. Items are keyed 64-bit hashes: if two items of one user are taken
        for one, this user's own number alone is wrong.

    Memory: 24 bytes for each distinct pair of a batch, and 16 for each of its users.
    """

    def __init__(self, schedule: WindowSchedule, secret: bytes) -> None:
        self._schedule = schedule
        self._hash_users = IdHasher(derive_key(secret, "user ids"))
        self._hash_items = IdHasher(derive_key(secret, "item ids"))
        self._users: list[Words] = []
        self._rows: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
        self.outside = 0

    def add(self, batch: EventBatch) -> None:
        """Takes the events of a batch into account."""
        windows = self._schedule.first_window(batch.time_micros)
        inside = windows >= 0
        self.outside += len(windows) - int(np.count_nonzero(inside))
        if not inside.any():
            return
        users, user_of_code = _distinct(self._hash_users(batch.user.dictionary))
        items, item_of_code = np.unique(self._hash_items(batch.item.dictionary)[:, 0], return_inverse=True)
        rows = (
            user_of_code[batch.user.indices.to_numpy()[inside]],
            item_of_code[batch.item.indices.to_numpy()[inside]],
            windows[inside],
        )
        user, item, window = sort_distinct([rows], (len(users), len(items), self._schedule.horizon))
        self._users.append(users)
        self._rows.append((user, items[item], window))

    def pairs_of_users(self) -> npt.NDArray[np.int64]:
        """The number of pairs of each user that has any. Returns int64[users], in no order that means anything."""
        if not self._rows:
            return np.zeros(0, dtype=np.int64)
        users, user_of_code = _distinct(np.concatenate(self._users))
        before = np.cumsum([0, *(len(part) for part in self._users)])
        user = np.concatenate(
            [user_of_code[first + rows[0]] for first, rows in zip(before[:-1], self._rows, strict=True)]
        )
        items, item = np.unique(np.concatenate([rows[1] for rows in self._rows]), return_inverse=True)
        window = np.concatenate([rows[2] for rows in self._rows])
        user, item, window = sort_distinct([(user, item, window)], (len(users), len(items), self._schedule.horizon))
        # An event counts in its first window and in those that follow; two events of one item overlap there.
        counted = np.full(len(user), self._schedule.windows_per_event, dtype=np.int64)
        again = (user[1:] == user[:-1]) & (item[1:] == item[:-1])
        counted[:-1][again] = np.minimum(counted[:-1], np.diff(window))[again]
        return np.add.reduceat(counted, group_starts(user))


def _distinct(hashes: Words) -> tuple[Words, npt.NDArray[np.int64]]:
    """The distinct rows, sorted, and the position among them of each row. hashes: uint64[n, 2]."""
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    starts = group_starts(ordered[:, 0], ordered[:, 1])
    codes = np.empty(len(hashes), dtype=np.int64)
    codes[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(hashes))))
    return ordered[starts], codes


def noisy_histogram(counts: npt.NDArray[np.int64], epsilon: float, uniforms: Words) -> npt.NDArray[np.int64]:
    """The counts, each with discrete Laplace noise of scale ``1 / epsilon``. They may become negative.

    Guarantee: the result is epsilon-DP for adding or removing one user, up to the total variation that
    `discrete_laplace_law.sampling_total_variation` bounds, once. Unit: one histogram. A user is in one bucket, so one
    of the counts changes by 1, and every outcome becomes at most e^epsilon times likelier or less likely
    (docs/guarantee.md, "Claim (histogram)"). The other counts, and the draws for them, are the same with and without
    the user. The buckets are declared, empty ones included: a bucket that only appears with a user in it would tell of
    that user.

    counts: int64[n], users in each bucket. uniforms: uint64[n, 2], fresh: never used before or afterwards.
    """
    if uniforms.shape != (len(counts), 2):
        raise ValueError(f"uniforms must be one pair of words for each of {len(counts)} counts, got {uniforms.shape}.")
    return counts + discrete_laplace(epsilon).sample(uniforms)
