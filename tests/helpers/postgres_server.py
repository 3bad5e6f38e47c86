"""A PostgreSQL server of this machine's own package, in a folder, reached by a socket there."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

_PLACES = "/usr/lib/postgresql/*/bin"
_NOBODY = "nobody"


def tools() -> pathlib.Path | None:
    """The folder with initdb and postgres; None where they are not installed."""
    found = shutil.which("initdb")
    if found:
        return pathlib.Path(found).parent
    folders = sorted(pathlib.Path("/").glob(_PLACES.lstrip("/")))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def skip_reason() -> str:
    """Why no server can be started; "" if one can."""
    if tools() is None:
        return "no PostgreSQL on this machine (Debian: apt-get install postgresql)"
    try:
        import psycopg
    except ImportError:
        return "psycopg is not installed"
    assert psycopg
    return ""


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database. The server refuses to run as root, and then runs as nobody."""
    folder = tools()
    assert folder is not None
    place = pathlib.Path(tempfile.mkdtemp(prefix="shh-pg-", dir="/tmp"))  # the path of a socket must be short
    if os.geteuid() == 0:
        shutil.chown(place, _NOBODY)

    def run(*words: str) -> None:
        options = {"user": _NOBODY} if os.geteuid() == 0 else {}
        subprocess.run(words, cwd=place, check=True, stdout=subprocess.DEVNULL, **options)  # type: ignore[call-overload]

    data, log = str(place / "data"), str(place / "log")
    try:
        run(str(folder / "initdb"), "-D", data, "-U", "shh", "-A", "trust", "-E", "UTF8", "--no-sync")
        settings = f"-k {place} -c listen_addresses= -c fsync=off -c max_connections=40"
        run(str(folder / "pg_ctl"), "-D", data, "-l", log, "-w", "-o", settings, "start")
        try:
            yield f"postgresql://shh@/postgres?host={place}"
        finally:
            run(str(folder / "pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)
