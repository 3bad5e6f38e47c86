"""All modules that import Beam, each named by a verb.

Begin with `monitor_heavy_hitters`: its ``ThresholdMonitorEvolvingDoFn`` is the stateful DoFn that tests the items of
each window against a threshold, charges the counters of the users who hold a hit, and leaves out users that have paid
all their hits. It runs wherever users pay for hits. All other steps bring it its candidates, or take its reports, or do
the same where users pay for looks. In the order in which an event meets them:

read_events                      a log, or elements of any kind -> batches of events
assign_windows                   batches -> pairs (user, item) by window and shard of users
bound_contributions              at most L items per user and window
draw_zero_items                  the items of a known domain that are published although nobody holds them
find_candidates                  items that pass the first stage of their noise draw
monitor_heavy_hitters            ThresholdMonitorEvolvingDoFn: test, charge, exclude, report, window after window
name_heavy_hitters               release mode names: weigh_users, draw_empty_items and name_items; or, with a price for
                                 hits, weigh_users, draw_zero_items, find_looks and monitor_heavy_hitters
write_files                      reports -> one file, and its name when all is done; rejected rows -> another file, for
                                 the operator
release_heavy_hitters            `ShiftingHeavyHitters`, which joins these steps

For a replay on one machine:

release_log                      `ReleaseLog`: chunks of a log in the place of batches of events
run_steps                        hands heavy steps to worker processes of this machine (`dp_transforms.workers`)

For Beam YAML and for pipelines in other languages:

release_rows                     `HeavyHitterRows`, `ReadHeavyHitters` and `ReadHeavyHittersOfTopic`, declared by plain
                                 values: rows, a log or a topic of Kafka -> rows with a schema, in order

For streams, joined by monitor_stream (`MonitorStream`), other modules replace some of these:

poll_partitions                  for reading and assigning
gather_counted                   for grouping by key
gather_in_order                  for steps that take windows in order, without timers
monitor_counted                  for the monitor: its twin, which counts what it waits for and needs no timer
name_stream                      in release mode names: joins the three steps below
spend_purses                     in release mode names: what a user adds to its items, and what it has left
answer_in_order                  in release mode names: the base of the next two, each shard of items in order
name_counted                     in release mode names: which items are named, window after window
find_looks                       in release mode names with a price for hits: candidates for monitor_counted
release_counted                  in release mode names: reports in order
write_report_stream              for writing

In release mode names `ShiftingHeavyHitters` does the same on unbounded input, behind one step that looks at the
watermark: close_by_watermark, which says for each window when it is complete.

What they share: set_up_workers (coders, metrics, the noise key and the items of a known domain), close_windows (both
monitors), write_state (what a part of a run hands to the next), drop_late_panes.
"""
