"""The pipeline of examples/yaml runs as it stands, on Beam's local runner, which is named: nothing is downloaded."""

import csv
import pathlib
import re

import pyarrow as pa
import pyarrow.parquet as pq

from dp_transforms.beam.release_rows import HeavyHitterRow
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc
from tests.helpers.shh_process import run_python
from tests.helpers.small_runs import MICROS, key_file
from tests.reference.log import Event

_START, _HOURS = 1_767_225_600, 6  # 2026-01-01


def clear_log() -> tuple[list[Event], Plan, dict[tuple[str, str], int]]:
    """The log; a plan for it; for each window and item that many have, by how many: 200 to 500.

    Everybody has one item in the whole run, so a user budget pays for its weight at once. One item of each window has
    one user, without whom it could not be named: it is named with a probability of at most delta, 1e-6. No item is
    followed, which noise alone may name in another window. With epsilon 8 the noise has a standard deviation of two
    users.
    """
    log, many = [], {}
    for hour in range(_HOURS):
        micros = (_START + 3600 * hour) * MICROS
        for item, users in ((f"story-{hour}", 200 + 60 * hour), ("page", 300), ("rare", 1)):
            log += [(f"{item}-{hour}-{user}", item, micros + user * MICROS) for user in range(users)]
            if users > 1:
                many[format_utc(micros), item] = users
    schedule = WindowSchedule.fixed(_START, _START + 3600 * _HOURS, 3600)
    return log, Plan.for_contributions(epsilon=8, delta=1e-6, schedule=schedule, forget_after=0), many


ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = (ROOT / "examples" / "yaml" / "rows_to_csv.yaml").read_text()
OFFLINE = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")


def run_yaml(text, folder):
    """Without java: for some of its steps Beam has two versions, and that of Java would be downloaded."""
    (folder / "pipeline.yaml").write_text(text)
    words = ("-m", "apache_beam.yaml.main", "--yaml_pipeline_file=pipeline.yaml", "--runner=FnApiRunner")
    result = run_python(*words, cwd=folder, environment={**OFFLINE, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"})
    assert result.returncode == 0, result.stderr


def test_rows_are_mapped_and_answered_in_order(tmp_path):
    """It is a run of its own, so its noise is not known. Each item that many have is missed, or told with a
    size that is off by a quarter, and each that one user has is found, with a probability below 1e-5."""
    log, plan, many = clear_log()
    (tmp_path / "plan.json").write_text(plan.to_json())
    key_file(tmp_path)
    users, items, micros = zip(*log, strict=True)
    columns = {
        "reader": users,
        "section": ["news"] * len(log),
        "article": items,
        "at": [time // 1000 for time in micros],
    }
    for name, value in zip(columns, ("", "news", "sport", 7), strict=True):
        columns[name] = [*columns[name], value]
    pq.write_table(pa.table(columns), tmp_path / "visits.parquet")
    run_yaml(EXAMPLE, tmp_path)
    (written,) = tmp_path.glob("heavy_items.csv*")
    found = list(csv.DictReader(written.open(newline="")))
    assert tuple(found[0]) == HeavyHitterRow._fields
    sizes = {(row["window_start"], row["item"].removeprefix("news / ")): int(row["at_least_users"]) for row in found}
    assert sizes.keys() == many.keys()
    assert [row["window_start"] for row in found] == sorted(row["window_start"] for row in found)
    assert all(0.75 * many[place] < size < 1.25 * many[place] for place, size in sizes.items())
    assert {(row["epsilon_total"], row["delta"], row["noisy_count"], row["zone"]) for row in found} == {
        ("8.0", "1e-06", "", "")
    }


def test_a_plan_that_is_not_whole_is_refused_by_name(tmp_path):
    """What a user sees who forgets the end."""
    columns = {"reader": ["u"], "section": ["a"], "article": ["b"], "at": [7]}
    pq.write_table(pa.table(columns), tmp_path / "visits.parquet")
    budget = "epsilon: 2\n        delta: 1.0e-9\n        start: 2026-01-01\n        window: 1h\n"
    (tmp_path / "pipeline.yaml").write_text(EXAMPLE.replace("plan: plan.json\n", budget))
    words = ("-m", "apache_beam.yaml.main", "--yaml_pipeline_file=pipeline.yaml", "--runner=FnApiRunner")
    result = run_python(*words, cwd=tmp_path, environment={**OFFLINE, "PATH": "/nowhere"})
    assert result.returncode != 0
    assert "end must be given. Give plan=PATH" in result.stderr


def test_the_page_shows_the_example_as_it_is():
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "other_languages.md").read_text(), re.DOTALL)
    assert shown == re.sub(r"\A(#.*\n)+", "", EXAMPLE)
