"""pipelines/replay_log.py for Dataflow, as far as it goes without the service: the command of the page makes a job."""

from __future__ import annotations

import pathlib

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions

from dp_transforms.stores import remote_files
from tests.helpers.submitted_jobs import REPLAY, made_job, make_folder

pytest.importorskip("google.cloud.dataflow", reason="Google's client is missing: pip install -e '.[dev]'")
pytestmark = pytest.mark.xdist_group("s3")


def test_a_replay_is_a_batch_job_that_publishes_in_its_last_step(
    bucket: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    remote_files.put_new(f"{bucket}/clicks/a.parquet", (tmp_path / "clicks" / "a.parquet").read_bytes())
    names = {path.name for path in tmp_path.iterdir()}
    places = {"gs://BUCKET/clicks": f"{bucket}/clicks", "gs://BUCKET/report": f"{bucket}/report"}
    job, options = made_job(REPLAY, {**places, "PROJECT": "project", "BUCKET": "bucket"}, monkeypatch)
    (last,) = (each for each in job.components.transforms.values() if each.unique_name.endswith("/PublishDraft"))
    assert not any(
        set(last.outputs.values()) & set(each.inputs.values()) for each in job.components.transforms.values()
    )
    environments = job.components.environments.values()
    assert {bytes(hint) for each in environments for hint in each.resource_hints.values()} == {b"8000000000"}
    assert options.view_as(GoogleCloudOptions).job_name.startswith("shh-events-")
    assert not remote_files.exists(f"{bucket}/report.avro")
    assert {path.name for path in tmp_path.iterdir()} == names
