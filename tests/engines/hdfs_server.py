"""A real name node with a data node, in a process of its own."""

from __future__ import annotations

import pathlib

from dp_transforms.runners.engine_process import Engine, engine_file, java

HDFS_LIBRARIES = "hdfs/.made"  # `make hdfs` makes it last, beside the libraries
_SOURCE = pathlib.Path(__file__).parent / "hdfs" / "NameNode.java"
_START_SECONDS = 120.0


class HdfsServer(Engine):
    """address: of WebHDFS, ``host:port``."""

    def __init__(self, folder: pathlib.Path) -> None:
        libraries = engine_file(HDFS_LIBRARIES, "hdfs").parent
        port = folder / "port"
        options = ["-Xmx400m", "-XX:TieredStopAtLevel=1", "-cp", f"{libraries}/*"]
        command = [java(), *options, str(_SOURCE), str(folder / "data"), str(port)]
        self._start(command, folder / "hdfs.log", port.exists, _START_SECONDS)
        self.address = f"127.0.0.1:{port.read_text()}"
