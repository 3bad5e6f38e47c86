"""``shh completion SHELL``: the script with which a shell completes the words of ``shh``."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE = "_SHH_COMPLETE"  # the script sets it when it asks
_SIGNS_OF_FILES = ("FILE", "FOLDER", "PATH", "LOG", "SAVEPOINT", "REPORT")


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete commands, options, their values and names of files.

    \b
    shh completion bash > ~/.local/share/bash-completion/completions/shh
    shh completion zsh > "${fpath[1]}/_shh"
    shh completion fish > ~/.config/fish/completions/shh.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "shh", VARIABLE).source())


class _FileName(click.types.StringParamType):
    """Text that names a file."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def complete_files(command: click.Command) -> click.Command:
    """The command, whose parameters that name files are completed with names of files."""
    for parameter in command.params:
        metavar = (parameter.metavar or parameter.name or "").upper()
        if isinstance(parameter.type, click.types.StringParamType) and any(sign in metavar for sign in _SIGNS_OF_FILES):
            parameter.type = _FileName()
    return command
