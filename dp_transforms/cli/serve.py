"""``shh serve``: a live page of a report, or of a ledger, in the browser."""

from __future__ import annotations

import contextlib
import datetime
import errno
import importlib.util
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dp_transforms.checks import how_to_install
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import TIME_ZONE_OPTION, TITLES_OPTION
from dp_transforms.engines.this_machine import addresses_of, is_loopback
from dp_transforms.errors import UserError
from dp_transforms.stores.databases import is_database

if TYPE_CHECKING:
    from dp_transforms.views.serving.access import Access
    from dp_transforms.views.serving.live_view import Followed
    from dp_transforms.views.serving.web_app import AskOperator

    Shown = Callable[[], tuple[Followed, AskOperator | None]]  # reads it for the first time; raises UserError

_LATEST_WINDOWS = 10_000
_SECONDS_BETWEEN_LOOKS = 1.0  # for a stream that has not begun
_MOST_CONNECTIONS = 1000  # at once; further ones are told to come later
_BACKLOG = 1024
_HOST_AND_PORT = re.compile(r"[^\s:/]+:\d{1,5}")


@click.command(name="serve")
@click.argument("reports", metavar="[REPORT]...", nargs=-1, type=click.Path(path_type=str))
@click.option(
    "--ledger",
    metavar="FILE|URL",
    help="Show this ledger instead of a report, for the operator: budgets, runs, and what is left.",
)
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
    help="Ask for the token in this file, one line of at least 20 signs. Without it a report on a loopback --host "
    "without --name needs none, and all else a new one, which is printed.",
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
@click.option("--run-id", metavar="RUN", help="The run of a topic that has several.")
@click.option(
    "--kafka-config",
    metavar="FILE",
    help="Further settings of the Kafka client for a topic, one NAME=VALUE a line, such as security.protocol.",
)
@TITLES_OPTION
@TIME_ZONE_OPTION
@click.option(
    "--flink-master",
    metavar="HOST:PORT",
    help="Show numbers of the run's job on this Flink beside the report, for the operator. They are exact and not "
    "covered by the guarantee, so only a loopback --host without --name may show them.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    reports: tuple[str, ...],
    ledger: str | None,
    host: str,
    port: int,
    token_file: str | None,
    names: tuple[str, ...],
    zone: datetime.tzinfo,
    **of_report: Any,
) -> None:
    """Show a live page of a report: windows appear as they close. Or of a ledger.

    REPORT is the folder of a `shh stream`, which may still have to begin, its topic as kafka://HOST:PORT/TOPIC, or a
    file of `shh replay` (Avro, JSON lines or Parquet), several files of one run, or a folder of them. Ctrl-C ends it.
    """
    _check_library()
    from dp_transforms.views.serving.access import Access, new_token, read_token
    from dp_transforms.views.serving.web_app import LiveSite

    is_local = _is_loopback_host(host)
    open_by = f"--host {host}" if not is_local else f"--name {names[0]}" if names else None
    if bool(reports) == (ledger is not None):
        raise UserError("give one of both: REPORT, such as the --output folder of `shh stream`, or --ledger.")
    if reports:
        shown = _report_shown(reports, of_report, zone, open_by)
    else:
        given = [name for name in of_report if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]
        shown = _ledger_shown(str(ledger), given, zone)
    # Others on this machine cannot open the file of a ledger either.
    is_open = open_by is None and ledger is None
    token = read_token(token_file) if token_file is not None else None if is_open else new_token()
    with bound(host, port) as listening:
        site = LiveSite(*shown())
        listening.listen(_BACKLOG)
        port = listening.getsockname()[1]
        own = [host] if is_local else [host, socket.gethostname()]
        access = Access(site.application(), token=token, names=[*names, *own], port=port)
        _announce(host, port, token, token_file, is_local)
        _run_server(access, listening)


def _report_shown(reports: Sequence[str], options: dict[str, Any], zone: datetime.tzinfo, open_by: str | None) -> Shown:
    """open_by: the option by which others than this machine may reach it. Raises UserError for options that do not
    fit."""
    from dp_transforms.views.page.report_columns import read_titles
    from dp_transforms.views.serving.live_report import LiveReport
    from dp_transforms.views.serving.report_source import NotBegunError, may_begin, source_of

    flink_master, run_id, config = options["flink_master"], options["run_id"], options["kafka_config"]
    if flink_master is not None:
        _check_operator(flink_master, open_by)
    for report in reports:
        _check_report(report, {"--run-id": run_id, "--kafka-config": config})
    titles = read_titles(options["titles"]) if options["titles"] is not None else {}

    def read() -> tuple[Followed, AskOperator | None]:
        has_told = False
        while True:
            source = source_of(reports, run_id, config)
            try:
                live = LiveReport(source, zone, titles, options["last"], for_operator=flink_master is not None)
                break
            except NotBegunError as error:
                if not may_begin(reports[0]):
                    raise
                if not has_told:
                    tell(f"{error} The page is there once they come. Ctrl-C ends the wait.")
                has_told = True
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        if flink_master is None:
            return live, None
        from dp_transforms.cli.flink_jobs import OperatorNumbers

        numbers = OperatorNumbers(flink_master)
        return live, lambda now: numbers.ask(live.header, now)

    return read


def _ledger_shown(place: str, of_report: list[str], zone: datetime.tzinfo) -> Shown:
    """of_report: names of options that were given and belong to a report."""
    if of_report:
        raise UserError(f"--{of_report[0].replace('_', '-')} belongs to a report. Leave it out, or serve the report.")
    from dp_transforms.views.serving.live_ledger import LiveLedger

    return lambda: (LiveLedger(place, zone), None)


def _check_library() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError(f"shh serve needs the packages starlette and uvicorn. {how_to_install('serve')}")


def _check_report(report: str, of_topic: dict[str, str | None]) -> None:
    from dp_transforms.views.serving.report_source import is_topic, may_begin

    if is_topic(report):
        return
    for option, value in of_topic.items():
        if value is not None:
            raise UserError(f"{option} is for a topic, such as kafka://localhost:9092/reports. Leave it out.")
    if is_database(report):
        raise UserError(
            "a database is not followed. Serve the folder or topic of the stream, or ask the database itself."
        )
    if not os.path.lexists(report) and not may_begin(report):
        raise UserError(f"REPORT {report} does not exist. Name a report file, or the --output folder of `shh stream`.")


def _check_operator(flink_master: str, open_by: str | None) -> None:
    if not _HOST_AND_PORT.fullmatch(flink_master):
        raise UserError(f"--flink-master must be HOST:PORT, got {flink_master!r}.")
    if open_by is not None:
        raise UserError(
            f"--flink-master shows exact numbers of the log, and {open_by} is for others too. Leave one of"
            " them out; an operator elsewhere can reach a loopback address by ssh -L."
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


def _is_loopback_host(host: str) -> bool:
    """Whether only this machine reaches it. A name without an address is none."""
    found = addresses_of(host)
    return bool(found) and all(map(is_loopback, found))


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound there. It must still listen, once there is a page: who comes before is refused, and does
    not hang. port: 0 for any free one. Raises UserError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(f"--host {host} is not an address of this machine: {error.strerror}.") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"--port {port} is taken: another program listens there. Give another one, or --port 0 for any that is"
                " free."
            ) from error
        if error.errno == errno.EACCES:
            raise UserError(f"--port {port} is not allowed to this user. Give one from 1024 on.") from error
        raise UserError(f"--host {host} is not an address of this machine: {error.strerror}.") from error
    return made


def _run_server(application: Access, listening: socket.socket) -> None:
    """Serves until a signal ends the process, by the handlers of `exit_signals`."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leaves the handlers as they are: uvicorn's would wait for all browsers to leave."""
            yield

    config = uvicorn.Config(
        application,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # a first request has the token in its address
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        backlog=_BACKLOG,
    )
    Server(config).run(sockets=[listening])
