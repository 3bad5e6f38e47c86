"""What the launcher of the template runs: the template's parameters and Beam's options as one command line.

The image says by ``SHH_COMMAND`` which command it is for: ``stream`` or ``replay``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from dp_transforms.cli import replay, stream
from dp_transforms.cli.main import main

_COMMANDS = {"stream": stream.command, "replay": replay.command}


def command_line(arguments: Sequence[str], name: str = "stream") -> list[str]:
    """``--user_field=u --region=r`` -> ``stream --engine dataflow --detach --user-field=u -- --region=r``.

    The launcher writes everything as ``--name=value``. Options of ``shh stream`` go to it, all others to Beam.
    For an option without a value it writes true, or false to leave it out. name: of the command; the log of a replay
    is the parameter ``log``.
    """
    command = _COMMANDS[name]
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    ours = {option for parameter in options for option in parameter.opts}
    flags = {option for parameter in options if parameter.is_flag for option in parameter.opts}
    words, beam_words = [name, "--engine", "dataflow", "--detach"], []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        option = key.replace("_", "-")
        if name == "replay" and key == "--log":
            words.insert(1, value)
        elif option in flags and key != "--detach" and value in ("true", "false"):
            words += [option] if value == "true" else []
        elif option in ours and key not in ("--engine", "--detach"):
            words.append(option + equals + value)
        else:
            beam_words.append(argument)
    return [*words, "--", *beam_words]


if __name__ == "__main__":
    main(command_line(sys.argv[1:], os.environ.get("SHH_COMMAND", "stream")))
