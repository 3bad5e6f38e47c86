"""Measurements of speed, memory, utility and solve time. Run them with ``make bench``; the product never imports this.

speed, start    events per second and memory of whole replays, beside Beam's element path; how commands start
cores           a replay by two processes beside one, and of looks beside hits
peers           replays beside PipelineDP, Beam's count of elements and a group-by of pyarrow, on one log
finding         what each method finds in real logs and a simulated one; dp_sqlp: in the workload of DP-SQLP
scale           CPU of each stage of a replay, by size and skew of the log; replay_on_flink: of whole replays there
accounting      how long the accountants take; noise_comparison, linear_queries: what methods of papers cost
run_state       bytes and seconds of the state of a hundred million users
stream_load     the rate that a stream on Flink sustains, its delay and memory, beside a bare consumer and a replay
report, tables  a table on the terminal, JSON in benchmarks/results, tables for the documents
logs            the simulated logs and their replays; real_logs, finding_logs: those that were given
"""
