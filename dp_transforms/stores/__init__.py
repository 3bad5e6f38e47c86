"""Where bytes lie: local files, object stores, Kafka. Nothing here knows what they mean.

- files: by path or by URL, for whoever need not know which; and how commands write.
- local_files: how local files are opened, and how an output appears whole or not at all.
- remote_files: files by URL, on S3, Google Cloud Storage and Azure.
- avro_container: header and blocks of Avro's files.
- kafka_client: settings and errors of the Kafka client, for sources and sinks, without secrets.
"""
