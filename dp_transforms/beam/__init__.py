"""All modules that import Beam.

Begin with `threshold_monitor`: `ThresholdMonitorEvolving`, and its stateful DoFn, which tests the items of each window
against a threshold, charges the counters of the users who hold a hit, and leaves out users that have paid all their
hits. It runs wherever users pay for hits. All else brings it its candidates, takes its reports, or does the same where
users pay for contributions. The way of an event:

read_events            a log, or elements of any kind (element_fields) -> batches of events
assign_windows         batches -> contributions by window and shard of users
at_once                these, of bounded input -> reports: users and items in turn, once or in rounds
write_files            reports -> one file, when all is done; rejected rows -> another file, for the operator
release_heavy_hitters  `ShiftingHeavyHitters`, which joins these steps
release_rows           `HeavyHitterRows`, declared by plain values: rows -> rows with a schema, in order

What belongs to a window is complete:

at_once                at the end of bounded input
close_windows          when the watermark passes its end: for any source of Beam's
in_order               when all that was announced for it has come (turns): for the partitions of `MonitorStream`, which
                       poll_partitions reads, and for what close_windows has closed where users pay for contributions;
                       write_report_stream writes

What all share: keys (how workers get the noise key), coders, metrics, and runner_options, what a run needs on each
runner.
"""
