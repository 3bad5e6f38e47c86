"""What is counted for the operator alone. Never released, never by user or item (docs/guarantee.md, "What may be
published")."""

from __future__ import annotations

EVENTS_READ = "events_read"
EVENTS_REJECTED = "events_rejected"
EVENTS_OUTSIDE_RANGE = "events_outside_range"
EVENTS_OF_OTHER_ITEMS = "events_of_other_items"  # than the public ones, inside the range
EVENTS_OF_OTHER_KEYS = "events_of_other_keys"  # than those that were named
LATE_BATCHES = "late_batches_dropped"
CONTRIBUTIONS_UNPAID = "contributions_unpaid"  # beyond what a user budget pays for; they do not count
REPORTS_WITHHELD = "reports_withheld"  # of a job that publishes by itself: too many rows could not be read

# Of streams. What the partitions of one count: `logs.streams.partition_poller`.
WINDOWS_CLOSED = "windows_closed"  # by the monitor, also without heavy items

# Gauges of streams.
CLOCK_LAG_SECONDS = "clock_lag_seconds"  # how far the clock of a partition is behind the wall clock, at most
COUNTER_STATE_BYTES = "counter_state_bytes"  # the hits of all users who were ever charged
BUDGET_STATE_BYTES = "budget_state_bytes"  # of a shard of users, or for second tests of all: what is left to them
FOLLOWED_ITEMS = "followed_items"  # of a shard of items, or in second tests of all: what was named lately
