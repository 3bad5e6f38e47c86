"""All that imports Beam, one verb a module. In the order in which an event meets them:

read_events or collect_events    a log, or elements of any kind -> batches of events
assign_windows                   batches -> pairs (user, item) by window and shard of users
bound_contributions              at most L items per user and window
draw_zero_items                  the items of a known domain that nobody holds, and yet are published
find_candidates                  items that pass the first stage of their draw
monitor_heavy_hitters            the stateful DoFn: test, charge, exclude, report, window after window
write_reports                    reports -> one file
release_heavy_hitters            `ShiftingHeavyHitters`, which puts them together

For streams, put together by monitor_stream (`MonitorStream`):

poll_partitions                  takes the place of the first two
gather_counted                   that of grouping by key
write_report_stream              that of the last

What they share: load_noise_key, load_domain, set_up_workers (what a DoFn works with), split_rejected, drop_late_panes,
count_for_operator, encode_elements (coders).
"""
