"""Measurements of speed, memory, utility and solve time. Run them with ``make bench``; the product never imports this.

speed        events per second and memory of whole replays, beside Beam's element path; keyed draws per second
peers        replays beside PipelineDP, Beam's count of elements and a group-by of pyarrow, on one log
scale        CPU of each stage of a replay, by size and shape of the log
utility      what a replay finds in a real log, beside one noisy histogram per window
accounting   how long the accountants take
stream_load  the rate that a stream on Flink sustains, its delay and memory, beside a bare consumer and a replay
report       a table on the terminal, JSON in benchmarks/results
"""
