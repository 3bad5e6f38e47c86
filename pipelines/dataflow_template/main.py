"""What the launcher of the template runs: the template's parameters and Beam's options as one command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from dp_transforms.pipelines.cli import main
from dp_transforms.pipelines.stream import command


def command_line(arguments: Sequence[str]) -> list[str]:
    """``--user_field=u --region=r`` -> ``stream --engine dataflow --detach --user-field=u -- --region=r``.

    The launcher writes everything as ``--name=value``. Options of ``shh stream`` go to it, all others to Beam.
    For an option without a value it writes true, or false to leave it out.
    """
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    ours = {option for parameter in options for option in parameter.opts}
    flags = {option for parameter in options if parameter.is_flag for option in parameter.opts}
    words, beam_words = ["stream", "--engine", "dataflow", "--detach"], []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        option = name.replace("_", "-")
        if option in flags and name != "--detach" and value in ("true", "false"):
            words += [option] if value == "true" else []
        elif option in ours and name not in ("--engine", "--detach"):
            words.append(option + equals + value)
        else:
            beam_words.append(argument)
    return [*words, "--", *beam_words]


if __name__ == "__main__":
    main(command_line(sys.argv[1:]))
