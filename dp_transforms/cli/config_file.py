"""``shh --config FILE``: options of commands in a TOML file, one table for each command; the command line wins."""

from __future__ import annotations

import datetime
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import click

from dp_transforms.checks import on_one_line
from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import read_regular

_MOST_BYTES = 1 << 20
_COMMAND_LINE_ONLY = ("help", "help-all", "verbose")


def read_config(path: str, commands: Iterable[str]) -> dict[str, Any]:
    """The tables of the file, by command. Raises UserError for a file that cannot be read and for unknown tables."""
    try:
        data = read_regular(path, _MOST_BYTES)
        if len(data) > _MOST_BYTES:
            raise UserError(f"--config {path} has more than 1 MB, so it is not a list of options.")
        tables = tomllib.loads(data.decode())
    except OSError as error:
        raise UserError(f"--config {path} cannot be read: {error.strerror}. Name a regular file.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"--config {path} is not TOML: {on_one_line(str(error))}.") from None
    except UnicodeDecodeError:
        raise UserError(f"--config {path} is not UTF-8 text. Write it in TOML.") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists
        raise UserError(f"--config {path} has a value that is too large. Write numbers and texts in it.") from None
    for name, table in tables.items():
        if name not in commands:
            raise UserError(f"--config {path}: there is no command {_shown(name)}{_nearest(name, commands)}")
        if not isinstance(table, dict):
            raise UserError(
                f"--config {path}: {_shown(name)} must be a table of options: [{name}], and below it a line for each."
            )
    return tables


def defaults_of(path: str, command: click.Command, table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a command as click takes it: by the names of parameters, as texts of a command line.

    Raises UserError for a key that is no option of the command, naming the nearest, and for a value of another kind.
    """
    options = {
        each.opts[0].removeprefix("--"): each
        for each in command.params
        if isinstance(each, click.Option) and each.opts[0].removeprefix("--") not in _COMMAND_LINE_ONLY
    }
    inner = command.commands if isinstance(command, click.Group) else {}
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        where = f"--config {path}: [{command.name}] {_shown(key)}"
        if key in inner and isinstance(value, dict):
            found[key] = defaults_of(path, inner[key], value)
        elif name not in options:
            raise UserError(f"{where} is no option that a file may set{_nearest(name, [*options, *inner])}")
        else:
            found[str(options[name].name)] = _value(where, options[name], value)
    return found


def _value(where: str, option: click.Option, value: Any) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise UserError(f"{where} must be true or false.")
        return value
    if option.nargs != 1 or option.multiple:
        many = option.multiple or (isinstance(value, list) and len(value) == option.nargs)
        if not (many and isinstance(value, list)):
            raise UserError(f"{where} must be a list{'' if option.multiple else f' of {option.nargs} values'}.")
        return [_text(where, each) for each in value]
    return _text(where, value)


def _text(where: str, value: Any) -> str:
    """As it would stand on the command line, so that it is read by the same rules."""
    if isinstance(value, str):
        return value
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{where} must be a text or a number, as on the command line.")
    try:
        return repr(value)
    except ValueError:  # a hexadecimal number of thousands of digits
        raise UserError(f"{where} is too large a number.") from None


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f". Do you mean {close[0]}?" if close else f". There are: {', '.join(sorted(known))}."


def _shown(name: str) -> str:
    return repr(on_one_line(name, most=80))
