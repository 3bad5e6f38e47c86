"""Streams in: partitions of logs that grow, read by position. Knows no Beam.

- stream_source: what a source is: `StreamSource`, `PartitionReader`, the result of one poll.
- kafka_topic, kafka_reader, log_folder, folder_files: the sources: a Kafka topic, with what is refused of it, and a
  folder that log files are moved into.
- json_records: values of records -> events, by the rules of `logs`.
- partition_progress, partition_poller: in which windows an event counts and when they close; one step of reading.
- open_partitions: steps by the wall clock, with open readers, what an engine has confirmed, and the stop file.
"""
