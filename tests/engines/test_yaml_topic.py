"""examples/yaml/topic_to_parquet.yaml reads a real topic to the end of its range, and says what could not be read."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import subprocess
import sys

import pyarrow.parquet as pq

from dp_transforms import Plan, WindowSchedule
from tests.engines.kafka_server import KafkaServer

ROOT = pathlib.Path(__file__).parents[2]
START = 1_577_836_800  # 2020-01-01
BAD_ROWS = """
  extra_transforms:
    - type: WriteToCsv
      input: ReadHeavyHittersOfTopic.bad
      config: {path: bad.csv}
"""


def test_a_yaml_pipeline_reads_a_topic(kafka: KafkaServer, tmp_path: pathlib.Path) -> None:
    """300 users have the item in the first hour and 400 others in the second. Each is missed, or said with a size below
    100, with a probability below 1e-9: a stream, which does not know what users will do later, states about half of
    them, and the noise of epsilon 8 has a standard deviation of two users."""
    kafka.create_topic("yaml", partitions=2)
    for hour, users in enumerate((300, 400)):
        events = [
            {"user": f"u{hour}-{user}", "item": "news", "timestamp": START + 3600 * hour} for user in range(users)
        ]
        for partition in (0, 1):
            kafka.produce("yaml", [json.dumps(event).encode() for event in events[partition::2]], partition)
    kafka.produce("yaml", [b'{"user": 7.5}'], 1)
    schedule = WindowSchedule.fixed(START, START + 7200, 3600)
    (tmp_path / "plan.json").write_text(Plan.calibrate(epsilon=8, delta=1e-6, schedule=schedule).to_json())
    text = (ROOT / "examples" / "yaml" / "topic_to_parquet.yaml").read_text()
    for shown, here in (
        ("localhost:9092", kafka.bootstrap),
        ("topic: clicks", "topic: yaml"),
        ("idle_timeout: 5", "idle_timeout: 1\n        time_unit: s\n        error_handling: {output: bad}"),
        ("providers:", f"{BAD_ROWS}\nproviders:"),
    ):
        assert text.count(shown) == 1
        text = text.replace(shown, here)
    (tmp_path / "pipeline.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "apache_beam.yaml.main", "--yaml_pipeline_file=pipeline.yaml", "--runner=FnApiRunner"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [row for path in tmp_path.glob("heavy_items.parquet*") for row in pq.read_table(path).to_pylist()]
    sizes = {(row["window_start"], row["item"]): row["at_least_users"] for row in rows}
    assert sizes.keys() == {("2020-01-01T00:00:00Z", "news"), ("2020-01-01T01:00:00Z", "news")}
    assert 100 < sizes["2020-01-01T00:00:00Z", "news"] <= 300
    assert 100 < sizes["2020-01-01T01:00:00Z", "news"] <= 400
    (bad,) = [row for path in tmp_path.glob("bad.csv*") for row in csv.DictReader(path.read_text().splitlines())]
    assert bad == {"element": "yaml:1:350", "msg": "user has the wrong type", "stack": ""}
