"""What is counted for the operator alone. Never released, never by user or item (docs/guarantee.md, "What may be
published")."""

from __future__ import annotations

EVENTS_READ = "events_read"
EVENTS_REJECTED = "events_rejected"
EVENTS_OUTSIDE_RANGE = "events_outside_range"
EVENTS_WITHOUT_TIME = "events_without_time"  # elements that nobody gave a timestamp; they are outside the range too
EVENTS_OUTSIDE_DOMAIN = "events_outside_domain"  # and inside the range
LATE_BATCHES = "late_batches_dropped"
PAIRS_UNPAID = "pairs_unpaid"  # (window, item) of users with more of them than a purse pays for; they do not count
REPORTS_WITHHELD = "reports_withheld"  # of a job that publishes by itself: too many rows could not be read

# Of streams.
RECORDS_READ = "records_read"  # rejected ones included
EVENTS_LATE = "events_late"  # for at least one of their windows
EVENTS_FROM_THE_FUTURE = "events_from_the_future"
EVENTS_AFTER_STOP = "events_after_stop"  # arrived after the stop, so they do not count
STOPS_SEEN_LATE = "stops_seen_late"  # partitions that had already counted later arrivals when they saw the stop
WINDOWS_CLOSED = "windows_closed"  # by the monitor, also without heavy items
INTENTS = "intents"  # how often the wall clock or the operator moved the clock of a partition

# Gauges of streams: the latest value of any worker.
CLOCK_LAG_SECONDS = "clock_lag_seconds"  # how far one partition's clock is behind the wall clock
PENDING_WINDOWS = "pending_windows"  # candidates of so many windows wait in the monitor
PARTITION_STATE_BYTES = "partition_state_bytes"
BUDGET_STATE_BYTES = "budget_state_bytes"  # the hits of all users who were ever charged
PURSE_STATE_BYTES = "purse_state_bytes"  # of one shard of users: what is left to all users who were ever seen
KNOWN_ITEMS = "known_items"  # of one shard of items: what was named lately
STREAM_GAUGES = (
    CLOCK_LAG_SECONDS,
    PENDING_WINDOWS,
    PARTITION_STATE_BYTES,
    BUDGET_STATE_BYTES,
    PURSE_STATE_BYTES,
    KNOWN_ITEMS,
)
