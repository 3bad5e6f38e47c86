"""Where bytes lie: local files, object stores, Kafka. Nothing here knows what they mean.

- local_files: how local files are opened, and how an output appears whole or not at all.
- remote_files: files by URL, on S3, Google Cloud Storage and Azure: one rule.
- range_reader: one of them, as Python reads files.
- store_clients: how each of the three is asked.
- avro_container: Avro files, read with limits.
- kafka_client: settings and errors of the Kafka client, for sources and sinks, without secrets.
"""
