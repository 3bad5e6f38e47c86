"""The commands of ``shh`` by name."""

from __future__ import annotations

import click

from dp_transforms.cli.subcommands import shh


def commands() -> dict[str, click.Command]:
    context = click.Context(shh)
    found = {name: shh.get_command(context, name) for name in shh.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}
