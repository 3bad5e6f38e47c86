"""The cluster of two processes that tests kill."""

from dp_transforms.runners.flink_cluster import FlinkCluster

__all__ = ["FlinkCluster"]
