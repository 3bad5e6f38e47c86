"""Imports all steps, and the reader of Parquet files: what a worker process loads while it waits for its first task."""

from __future__ import annotations

import dp_transforms.logs.parquet
import dp_transforms.workers.groups
import dp_transforms.workers.read_pairs  # noqa: F401
