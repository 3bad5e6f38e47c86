"""The cluster of two processes that tests kill."""

from dp_transforms.engines.flink_cluster import FlinkCluster

__all__ = ["FlinkCluster"]
