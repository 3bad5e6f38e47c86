"""``shh serve``: a live page of a report, or of a ledger, in the browser."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import os
import socket
import time
from typing import TYPE_CHECKING

import click

from dp_transforms.checks import how_to_install
from dp_transforms.cli.engine_choice import HOST_AND_PORT
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import Rule, argument, filled_by, nested, opt
from dp_transforms.cli.shared_options import ViewOptions
from dp_transforms.engines.this_machine import addresses_of, is_loopback
from dp_transforms.errors import UserError
from dp_transforms.stores.databases import is_database
from dp_transforms.stores.kafka_client import is_topic
from dp_transforms.stores.local_files import mode_for_others, open_regular

if TYPE_CHECKING:
    from dp_transforms.views.serving.live_report import LiveReport
    from dp_transforms.views.serving.live_view import Followed
    from dp_transforms.views.serving.web_app import AskOperator

_LATEST_WINDOWS = 10_000
_SECONDS_BETWEEN_LOOKS = 1.0  # for a stream that has not begun
_LEAST_CHARACTERS = 20  # of a token: 119 bits of random letters and digits
_MOST_TOKEN_BYTES = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The command line of ``shh serve``."""

    reports: tuple[str, ...] = argument("[REPORT]...", required=False)
    ledger: str | None = opt(
        "",
        "Show this ledger instead of a report, for the operator: budgets, runs, and what is left.",
        metavar="FILE|URL",
    )
    host: str = opt("", "The address to listen on.", default="127.0.0.1", metavar="ADDRESS")
    port: int = opt(
        "", "The port to listen on; 0: any that is free.", type=click.IntRange(0, 65_535), default=8765, metavar="N"
    )
    token_file: str | None = opt(
        "",
        "Ask for the token in this file, one line of at least 20 signs. Without it a report on a loopback --host "
        "without --name needs none, and all else a new one, which is printed.",
        metavar="FILE",
    )
    names: tuple[str, ...] = opt(
        "",
        "A name by which browsers reach the server, besides localhost, addresses and --host, such as that of a "
        "proxy. May be given several times.",
        "--name",
        default=(),
        metavar="NAME",
    )
    last: int = opt(
        "",
        "Show the latest N windows with heavy items.",
        type=click.IntRange(min=1),
        default=_LATEST_WINDOWS,
        metavar="N",
    )
    run_id: str | None = opt("", "The run of a topic that has several.", metavar="RUN")
    kafka_config: str | None = opt(
        "",
        "Like `shh stream --kafka-config`, for a topic.",
        metavar="FILE",
    )
    view: ViewOptions = nested(ViewOptions)
    flink_master: str | None = opt(
        "",
        "Show numbers of the run's job on this Flink beside the report, for the operator. They are exact and not "
        "covered by the guarantee, so only a loopback --host without --name may show them.",
        metavar="HOST:PORT",
    )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches --host. A name without an address is none."""
        found = addresses_of(self.host)
        return bool(found) and all(map(is_loopback, found))

    @property
    def open_by(self) -> str | None:
        """The option by which others than this machine may reach the page."""
        return f"--host {self.host}" if not self.is_local else f"--name {self.names[0]}" if self.names else None


_SERVE_RULES = (
    Rule(
        "--last, --run-id, --kafka-config, --titles, --page-title, --flink-master",
        excludes="--ledger",
        why="it belongs to a report",
        remedy="Leave it out, or serve the report.",
    ),
)


@filled_by(ServeOptions, "serve", _SERVE_RULES)
def command(options: ServeOptions) -> None:
    """Show a live page of a report: windows appear as they close. Or of a ledger.

    REPORT is the folder of a `shh stream`, which may still have to begin, its topic as kafka://HOST:PORT/TOPIC, or a
    file of `shh replay` (Avro, JSON lines or Parquet), several files of one run, or a folder of them. Ctrl-C ends it.
    """
    _check_library()
    from dp_transforms.views.serving.access import Access, new_token
    from dp_transforms.views.serving.connections import server_of
    from dp_transforms.views.serving.web_app import LiveSite

    _check_shown(options)
    # Others on this machine cannot open the file of a ledger either.
    is_open = options.open_by is None and options.ledger is None
    token_file = options.token_file
    token = read_token(token_file) if token_file is not None else None if is_open else new_token()
    with bound(options.host, options.port) as listening:
        site = LiveSite(*_shown(options))
        listening.listen()
        port = listening.getsockname()[1]
        own = [options.host] if options.is_local else [options.host, socket.gethostname()]
        access = Access(site.application(), token=token, names=[*options.names, *own], port=port)
        _announce(options, port, token)
        server_of(access).run(sockets=[listening])  # until a signal ends the process (`exit_signals`)


def _check_shown(options: ServeOptions) -> None:
    """Raises UserError for what cannot be shown."""
    if bool(options.reports) == (options.ledger is not None):
        raise UserError("give one of both: REPORT, such as the --output folder of `shh stream`, or --ledger.")
    if options.flink_master is not None:
        _check_operator(options.flink_master, options.open_by)
    for report in options.reports:
        _check_report(report, {"--run-id": options.run_id, "--kafka-config": options.kafka_config})


def _shown(options: ServeOptions) -> tuple[Followed, AskOperator | None]:
    """What is followed, read for the first time. Raises UserError."""
    if options.ledger is not None:
        from dp_transforms.views.serving.live_ledger import LiveLedger

        return LiveLedger(options.ledger, options.view.zone), None
    live = _begun_report(options)
    if options.flink_master is None:
        return live, None
    from dp_transforms.cli.flink_jobs import OperatorNumbers

    numbers = OperatorNumbers(options.flink_master)
    return live, lambda now: numbers.ask(live.header, now)


def _begun_report(options: ServeOptions) -> LiveReport:
    """Returns once its stream has begun. Raises UserError."""
    from dp_transforms.views.serving.live_report import LiveReport
    from dp_transforms.views.serving.report_source import NotBegunError, may_begin, source_of

    view, for_operator = options.view, options.flink_master is not None
    titles = view.read_titles()
    has_told = False
    while True:
        source = source_of(options.reports, options.run_id, options.kafka_config)
        try:
            return LiveReport(source, view.zone, titles, options.last, title=view.page_title, for_operator=for_operator)
        except NotBegunError as error:
            if not may_begin(options.reports[0]):
                raise
            if not has_told:
                tell(f"{error} The page is there once they come. Ctrl-C ends the wait.")
            has_told = True
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _check_library() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError(f"shh serve needs the packages starlette and uvicorn. {how_to_install('serve')}")


def _check_report(report: str, of_topic: dict[str, str | None]) -> None:
    from dp_transforms.views.serving.report_source import may_begin

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
    if not HOST_AND_PORT.fullmatch(flink_master):
        raise UserError(f"--flink-master must be HOST:PORT, got {flink_master!r}.")
    if open_by is not None:
        raise UserError(
            f"--flink-master shows exact numbers of the log, and {open_by} is for others too. Leave one of"
            " them out; an operator elsewhere can reach a loopback address by ssh -L."
        )


def read_token(path: str) -> str:
    """The token in a private file, without the end of its line. Raises UserError, which quotes nothing of it."""
    try:
        with open_regular(path) as file:
            mode, data = mode_for_others(file), file.read(_MOST_TOKEN_BYTES + 1)
    except OSError as error:
        raise UserError(f"--token-file {path} cannot be read: {error.strerror}. Check the path.") from error
    if mode is not None:
        raise UserError(
            f"--token-file {path} can be used by others (mode {mode}). Close it with: chmod 600 {path}, and make a"
            " new token if somebody may have read it."
        )
    token = data.decode("ascii", errors="replace").removesuffix("\n").removesuffix("\r")
    is_plain = token.isascii() and token.isprintable() and " " not in token
    if not is_plain or not _LEAST_CHARACTERS <= len(token) < _MOST_TOKEN_BYTES:
        raise UserError(
            f"--token-file {path} must hold one line of at least {_LEAST_CHARACTERS} letters, digits and signs without"
            " blanks. Make one: openssl rand -hex 32"
        )
    return token


def _announce(options: ServeOptions, port: int, token: str | None) -> None:
    host, token_file = options.host, options.token_file
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/"
    if token is not None and token_file is None:
        address += f"?token={token}"
    click.echo(f"Open {address}")
    if token_file is not None:
        tell(f"It asks for the token once: add ?token= and the line in {token_file}.")
    if not options.is_local:
        tell("What goes over the network is not encrypted: put a proxy with TLS before it where others may listen.")
    tell("Ctrl-C ends it.")


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
