"""Imports all steps, and the reader of Parquet files: what a worker process loads while it waits for its first task."""

from __future__ import annotations

import dp_transforms.event_files.parquet
import dp_transforms.steps.groups
import dp_transforms.steps.read_pairs  # noqa: F401
