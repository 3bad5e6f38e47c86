"""All modules that import Beam.

Begin with `threshold_monitor`: `ThresholdMonitorEvolving`, and its stateful DoFn, which tests the items of each window
against a threshold, charges the counters of the users who hold a hit, and leaves out users that have paid all their
hits. `ShiftingHeavyHitters` with a plan of hits uses it under one key; `MonitorStream` and replays without an engine
call the same `HeavyHitterMonitor` without it. The way of an event:

read_events            a log, or elements of any kind -> batches of events
assign_windows         batches -> contributions by key, window and shard of users; when a window is complete
at_once                these, of bounded input -> reports: users and items in turn, once or in rounds
write_reports          reports -> one file, when all is done, or a folder; rejected rows -> for the operator
release_heavy_hitters  `ShiftingHeavyHitters`, which joins these steps
release_rows           `HeavyHitterRows`, declared by plain values: rows -> rows with a schema, in order

What belongs to a window is complete at the end of bounded input; when the watermark passes its end, for any source of
Beam's; and when all that was announced for it has come, for the partitions that `monitor_stream` reads. turns: what
waits until then, in every stateful step. in_order: the steps of a stream of counted messages.

What all share: workers (the noise key, coders, metrics), and runner_options, what a run needs on each runner. jobs: the
two pipelines that are submitted; replay_job: what one of them is made of.
"""
