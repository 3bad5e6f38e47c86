"""Measurements, run with ``make bench``; the product never imports this.

finding         what each method finds in real logs and a simulated one
speed           events per second and memory of whole replays, beside Beam's element path
stream_load     the rate that a stream on Flink sustains, its delay and memory, beside a bare consumer and a replay
report, tables  a table on the terminal, JSON in benchmarks/results, tables for the documents
logs            the simulated logs and their replays; real_logs, finding_logs: those that were given
"""
