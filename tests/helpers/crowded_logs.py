"""Logs of many users with a few items that most of them have, in several Parquet files; and their replay."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dp_transforms.beam.replay_job import ReplayJob
from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule

START = 1_767_225_600  # 2026-01-01T00:00:00Z
DAY = 86_400
SCHEDULE = WindowSchedule(START, START + DAY, 3600, 3600)
RANGE = ("--start", "2026-01-01", "--end", "2026-01-02", "--window", "1h")


def write_crowded_log(folder: pathlib.Path, events: int, users: int, files: int = 3) -> pathlib.Path:
    """A folder of files, each with several row groups; items as the largest of a city are."""
    draws = np.random.default_rng(1)
    folder.mkdir()
    for number, size in enumerate(np.full(files, events // files)):
        table = pa.table(
            {
                "user": id_texts("u", draws.integers(0, users, size)),
                "item": id_texts("i", np.minimum(draws.zipf(1.3, size), 5000)),
                "timestamp": pa.array((START + draws.integers(0, DAY, size)) * 1_000_000, pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=max(1000, size // 4))
    return folder


def id_texts(letter: str, numbers: np.ndarray) -> pa.Array:
    """Ids such as u17."""
    values, where = np.unique(numbers, return_inverse=True)
    words = pa.array([f"{letter}{value}" for value in values])
    return pa.DictionaryArray.from_arrays(pa.array(where, pa.int32()), words).cast(pa.string())


def replay_request(
    log: pathlib.Path | str,
    plan: Plan,
    output: pathlib.Path | str,
    key_path: str | None,
    run_id: str = "run-1",
    fields: EventFields | None = None,
    **asked: Any,
) -> ReplayJob:
    """asked: further fields of `ReplayJob`."""
    fields = fields or EventFields()
    return ReplayJob(
        chunks=find_log_chunks([str(log)], fields),
        fields=fields,
        plan=plan,
        noise_key=key_path,
        output=str(output),
        run_id=run_id,
        **asked,
    )
