"""Streams in: partitions of logs that grow, read by position. Knows no Beam.

- stream_source: what a source is.
"""
