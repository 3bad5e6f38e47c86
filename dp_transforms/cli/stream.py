"""``shh stream``: from a live stream to private reports, window by window, on a real engine."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from dp_transforms.cli.exit_signals import Unwinding
from dp_transforms.cli.options import GroupedCommand
from dp_transforms.cli.state_options import account_of_options
from dp_transforms.cli.stream_options import stream_options
from dp_transforms.cli.stream_request import stream_request
from dp_transforms.cli.stream_run import run_stream, run_stream_part
from dp_transforms.cli.stream_status import StreamStatus


@click.command(name="stream", cls=GroupedCommand)
@stream_options
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Watch a stream: which items are held by many users right now, window by window, under differential privacy for
    each user.

    The input is a Kafka topic, a folder of log files that grows, or a Pub/Sub subscription. Ctrl-C drains the run: all
    windows close, and it ends; twice ends it at once. Options for Beam follow after `--`.

    \b
    shh stream --kafka localhost:9092 --topic clicks --plan plan.json \\
        --noise-key-file noise.key --output reports/
    """
    given = {name for name in options if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    request = stream_request(options, given)
    account = account_of_options(options)
    with Unwinding():  # engines are stopped in order
        if request.state is None:
            run_stream(request, context.obj or [], StreamStatus(), account)
        else:
            run_stream_part(request, context.obj or [], StreamStatus("this part"), account)
