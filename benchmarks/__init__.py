"""Three benchmarks, run with ``make bench``; the product never imports them.

finding    what each method finds in two real logs and a simulated one
speed      events per second of whole replays, beside Beam's element path
streams    delay and memory of a stream on Flink that is fed from Kafka

What they share: processes, which runs and measures a command, and report, which shows and stores the figures.
"""
