"""Streams in: partitions of logs that grow, read by position. Knows no Beam.

- stream_source: what a source is: `StreamSource`, `PartitionReader`, the result of one poll.
- kafka_topic, kafka_reader: a Kafka topic, with what is refused of it, and the reader of a partition.
- log_folder: a folder that log files are moved into.
- partition_progress: in which windows an event counts, and when they close.
- partition_poller: one step of reading; steps by the wall clock, with open readers, what an engine has confirmed, and
  the stop file.
"""
