"""The cluster of two processes that tests kill."""

from runners.flink_cluster import FlinkCluster

__all__ = ["FlinkCluster"]
