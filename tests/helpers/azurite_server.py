"""Azurite, which is Microsoft's emulator of Azure Blob Storage, in a process of its own and in memory."""

from __future__ import annotations

import pathlib
import shutil

from examples.engines.engine_process import Engine, EngineError, engine_file, free_port, is_port_open

AZURITE = "azurite/node_modules/azurite/dist/src/blob/main.js"
ACCOUNT = "devstoreaccount1"
# Azurite's own account, the same everywhere.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_START_SECONDS = 60.0


def node() -> str:
    """The program that runs it. Raises EngineError."""
    found = shutil.which("node")
    if found is None:
        raise EngineError("no node in the PATH. Install Node.js.")
    return found


class AzuriteServer(Engine):
    """connection_string: as AZURE_STORAGE_CONNECTION_STRING has it. Raises EngineError where it is not installed."""

    def __init__(self, folder: pathlib.Path) -> None:
        port = free_port()
        main = engine_file(AZURITE)
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        command = [node(), str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
        self._start(command, folder / "azurite.log", lambda: is_port_open(port), _START_SECONDS)
        where = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
        self.connection_string = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={_KEY};{where}"

    def make_container(self, name: str) -> str:
        """Returns its URL."""
        from azure.storage.blob import BlobServiceClient

        BlobServiceClient.from_connection_string(self.connection_string).create_container(name)
        return f"azfs://{ACCOUNT}/{name}"
