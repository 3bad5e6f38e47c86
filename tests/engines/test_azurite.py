"""Azure Blob Storage: on Azurite, its emulator."""

from __future__ import annotations

import pathlib

import pytest

from dp_transforms.reports import read_report_file
from dp_transforms.stores import remote_files
from dp_transforms.stores.remote_files import RemoteFileError
from tests.engines import skip_reason
from tests.engines.azurite_server import ACCOUNT, AzuriteServer
from tests.helpers.replay_logs import BUDGET, write_log
from tests.helpers.shh_here import shh
from tests.helpers.store_contract import CONTRACT


def test_azure_holds_what_every_store_does_and_a_replay_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (reason := skip_reason("azurite")) is not None:
        pytest.skip(reason)
    pytest.importorskip("azure.storage.blob", reason="azure-storage-blob is not installed")
    with AzuriteServer(tmp_path) as server:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", server.connection_string)
        for number, holds in enumerate(CONTRACT):
            remote_files.store_of(f"azfs://{ACCOUNT}")._client(ACCOUNT).create_container(f"box-{number}")
            holds(f"azfs://{ACCOUNT}/box-{number}")
        with pytest.raises(FileNotFoundError, match="there is no such bucket"):
            list(remote_files.find_files(f"azfs://{ACCOUNT}/absent/*.csv"))
        with pytest.raises(RemoteFileError, match="AZURE_STORAGE_CONNECTION_STRING is of another account"):
            remote_files.look_at("azfs://another/box-0/a.csv")
        box = f"azfs://{ACCOUNT}/box-0"
        write_log(tmp_path / "a.parquet")
        remote_files.put_new(f"{box}/logs/a.parquet", (tmp_path / "a.parquet").read_bytes())
        result = shh("replay", f"{box}/logs", *BUDGET, "--output", f"{box}/one.avro", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        _, reports = read_report_file(f"{box}/one.avro")
        found = [hitter.item for report in reports for hitter in report.heavy_hitters]
        assert found == [f"heavy-{hour}" for hour in (0, 1, 3, 5)]
