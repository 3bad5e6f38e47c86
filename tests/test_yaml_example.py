"""The pipeline of examples/yaml runs as it stands, on Beam's local runner, which is named: nothing is downloaded."""

import csv
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.yaml import main as yaml_main

from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLE = (ROOT / "examples" / "yaml" / "rows_to_csv.yaml").read_text()
# Without java: for some of its steps Beam has two versions, and that of Java would be downloaded.
OFFLINE = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "PATH": "/nowhere"}
START = 1_767_225_600  # 2026-01-01


def test_rows_are_mapped_and_answered_in_order(tmp_path, monkeypatch):
    """Each item of many users is missed, or told with a size that is off by a quarter, and each of one user is found,
    with a probability below 1e-5. No item is followed, which noise alone may name in another window."""
    log = [("", "x", START * 1000), ("u", "", START * 1000)]
    for hour in range(6):
        for item, users in ((f"story-{hour}", 200 + 60 * hour), ("page", 300), ("rare", 1)):
            log += [(f"{item}-{hour}-{user}", item, (START + 3600 * hour + user) * 1000) for user in range(users)]
    users, items, times = zip(*log, strict=True)
    columns = {"reader": users, "section": ["news"] * len(log), "article": items, "at": times}
    pq.write_table(pa.table(columns), tmp_path / "visits.parquet")
    schedule = WindowSchedule.fixed(START, START + 6 * 3600, 3600)
    plan = Plan.for_contributions(epsilon=8, delta=1e-6, schedule=schedule, forget_after=0)
    (tmp_path / "plan.json").write_text(plan.to_json())
    key_file(tmp_path)
    (tmp_path / "pipeline.yaml").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    yaml_main.run(["--yaml_pipeline_file=pipeline.yaml", "--runner=FnApiRunner"])
    (written,) = tmp_path.glob("heavy_items.csv*")
    found = [(row["window_start"], row["item"], int(row["at_least_users"])) for row in csv.DictReader(written.open())]
    assert [start for start, _, _ in found] == sorted(start for start, _, _ in found)
    many = {f"news / story-{hour}": 200 + 60 * hour for hour in range(6)} | {"news / page": 300}
    assert len(found) == 12
    assert all(0.75 * many[item] < size < 1.25 * many[item] for _, item, size in found)
