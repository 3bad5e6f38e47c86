"""All modules that import Beam.

Begin with `threshold_monitor`: its ``ThresholdMonitorEvolvingDoFn`` is the stateful DoFn that tests the items of each
window against a threshold, charges the counters of the users who hold a hit, and leaves out users that have paid all
their hits. It runs wherever users pay for hits. All else brings it its candidates, takes its reports, or does the same
where users pay for looks, as they do by default. The way of an event:

read_events                      a log, or elements of any kind -> batches of events
assign_windows                   batches -> pairs (user, item) by window and shard of users
run_stages                       pairs -> reports, through the three stages of `dp_transforms.stages`; `ReleasePart`:
                                 events -> reports of one part of a run; write_state: what the next part needs
write_files                      reports -> one file, and its name when all is done; rejected rows -> another file, for
                                 the operator
release_heavy_hitters            `ShiftingHeavyHitters`, which joins these steps; `ReleaseLog`, by worker processes
release_rows                     `HeavyHitterRows`, declared by plain values: rows -> rows with a schema, in order

Two drivers run the stages:

at_once                          of bounded input: groups all that belongs together; on workers of an engine, or in
                                 worker processes of this machine
in_order                         of streams: takes windows in order, each when all that was announced for it has come
                                 (turns), and keeps what the stage carries over in Beam's state

monitor_stream (`MonitorStream`) reads the partitions of a stream by poll_partitions. `ShiftingHeavyHitters` learns from
close_by_watermark, the only step that looks at the watermark, that a window is complete. write_report_stream writes.
What all share is in set_up_workers: coders, metrics, the noise key, the items of a known domain.
"""
