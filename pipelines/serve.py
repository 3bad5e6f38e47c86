"""``shh serve REPORT``: a live page of a report, in the browser."""

from __future__ import annotations

import datetime
import importlib.util
import os
import re
import socket

import click

from dp_transforms.pipelines.operator_log import tell
from dp_transforms.pipelines.options import TIME_ZONE, UserError

_LATEST_WINDOWS = 10_000
_HOST_AND_PORT = re.compile(r"[^\s:/]+:\d{1,5}")


@click.command(name="serve")
@click.argument("report", type=click.Path(path_type=str))
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8765,
    show_default=True,
    metavar="N",
    help="The port to listen on; 0: any that is free.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="Ask for the token in this file, one line of at least 20 signs. Without it a loopback --host asks for none, "
    "and any other for a new one, which is printed.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers reach the server, besides localhost, addresses and --host, such as that of a proxy. "
    "May be given several times.",
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=_LATEST_WINDOWS,
    show_default=True,
    metavar="N",
    help="Show the latest N windows with heavy items.",
)
@click.option("--titles", metavar="FILE.csv", help="What people call the items: CSV with the columns item and title.")
@click.option(
    "--tz",
    "zone",
    type=TIME_ZONE,
    default="UTC",
    show_default=True,
    metavar="ZONE",
    help="Time zone of the page, such as Europe/Berlin.",
)
@click.option(
    "--flink-master",
    metavar="HOST:PORT",
    help="Show numbers of the run's job on this Flink beside the report, for the operator. They are exact and not "
    "covered by the guarantee, so only a loopback --host may show them.",
)
def command(
    report: str,
    host: str,
    port: int,
    token_file: str | None,
    names: tuple[str, ...],
    last: int,
    titles: str | None,
    zone: datetime.tzinfo,
    flink_master: str | None,
) -> None:
    """Show a live page of a report: windows appear as they close.

    REPORT is a folder of `shh stream`, or a file of `shh replay` (Avro, JSON lines or Parquet). Ctrl-C ends it.
    """
    _check_library()
    from dp_transforms.pipelines.page.item_titles import read_titles
    from dp_transforms.pipelines.serving.access import Access, new_token, read_token
    from dp_transforms.pipelines.serving.listening import is_loopback_host, listen, run_server
    from dp_transforms.pipelines.serving.live_report import LiveReport
    from dp_transforms.pipelines.serving.report_source import source_of
    from dp_transforms.pipelines.serving.web_app import LiveSite

    is_local = is_loopback_host(host)
    if flink_master is not None:
        _check_operator(flink_master, host, is_local)
    if not os.path.lexists(report):
        raise UserError(f"REPORT {report} does not exist. Name a report file, or the --output folder of `shh stream`.")
    token = read_token(token_file) if token_file is not None else None if is_local else new_token()
    titled = read_titles(titles) if titles is not None else {}
    with listen(host, port) as listening:
        live = LiveReport(source_of(report), zone, titled, last, for_operator=flink_master is not None)
        ask = None
        if flink_master is not None:
            from dp_transforms.pipelines.serving.operator_numbers import OperatorNumbers

            ask = OperatorNumbers(flink_master).ask
        port = listening.getsockname()[1]
        access = Access(
            LiveSite(live, ask).application(), token=token, names=[*names, host, socket.gethostname()], port=port
        )
        _announce(host, port, token, token_file, is_local)
        run_server(access, listening)


def _check_library() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError("shh serve needs the packages starlette and uvicorn. Install shh with its extra `serve`.")


def _check_operator(flink_master: str, host: str, is_local: bool) -> None:
    if not _HOST_AND_PORT.fullmatch(flink_master):
        raise UserError(f"--flink-master must be HOST:PORT, got {flink_master!r}.")
    if not is_local:
        raise UserError(
            f"--flink-master shows exact numbers of the log, and --host {host} is for others too. Leave one of them"
            " out; an operator elsewhere can reach a loopback address by ssh -L."
        )


def _announce(host: str, port: int, token: str | None, token_file: str | None, is_local: bool) -> None:
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/"
    if token is not None and token_file is None:
        address += f"?token={token}"
    click.echo(f"Open {address}")
    if token_file is not None:
        tell(f"It asks for the token once: add ?token= and the line in {token_file}.")
    if not is_local:
        tell("What goes over the network is not encrypted: put a proxy with TLS before it where others may listen.")
    tell("Ctrl-C ends it.")
