"""All modules that import Beam.

Begin with `threshold_monitor`: its ``ThresholdMonitorEvolvingDoFn`` is the stateful DoFn that tests the items of each
window against a threshold, charges the counters of the users who hold a hit, and leaves out users that have paid all
their hits. It runs wherever users pay for hits. All else brings it its candidates, takes its reports, or does the same
where users pay for looks. The way of an event:

read_events or collect_events    a log, or elements of any kind -> batches of events
assign_windows                   batches -> pairs (user, item) by window and shard of users
release_stages                   pairs -> reports, through the three stages of `dp_transforms.stages`
write_reports, write_rejected    reports -> one file; rejected rows -> another file, for the operator
publish_report                   a finished report -> its name, in a job that runs on without its command
release_heavy_hitters            `ShiftingHeavyHitters`, which joins these steps; `ReleaseLog`, by worker processes
release_part                     `ReleasePart`: the same for one part of a run; write_state: what the next part needs

Two drivers run the stages:

at_once                          of bounded input: groups all that belongs together; on workers of an engine, or in
                                 worker processes of this machine. count_named: how many hold what was named
in_order                         of streams: gathers what belongs to a window by counting (gather), waits for the
                                 window's turn, and keeps what the stage carries over in Beam's state

Streams: monitor_stream (`MonitorStream`) reads partitions by poll_partitions, with keep_alive and confirm_intents;
`ShiftingHeavyHitters` learns from close_by_watermark, the only step that looks at the watermark, that a window is
complete. write_report_stream writes.

For Beam YAML and for pipelines in other languages: release_rows, `HeavyHitterRows` and `ReadHeavyHitters`, declared by
plain values; read_topic, `ReadHeavyHittersOfTopic`; encode_rows, reports -> rows with a schema, in order.

What they share: load_noise_key, load_domain, set_up_workers (what a DoFn uses on its worker), gather_all (what waits
for the end of a run), split_rejected, count_for_operator (metrics), encode_elements (coders).
"""
