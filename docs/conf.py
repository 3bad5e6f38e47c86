"""Sphinx builds the site of these pages: `make docs`, into build/docs. A broken link or anchor is an error."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import click
from sphinx.util import logging

import dp_transforms
from dp_transforms.cli.subcommands import shh

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "shh: private shifting heavy hitters"
html_title = "shh"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4  # made as GitHub makes them
default_role = "code"
highlight_language = "none"
autodoc_default_options = {"members": True, "exclude-members": "__new__, __init__"}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
html_copy_source = False
smartquotes = False  # options begin with two hyphens

_NAMED = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")
_OUTSIDE = re.compile(r"\[`?([^]\[`]+)`?\]\(\.\./[^)]*\)")
_CODE = re.compile(r"``([^`]+)``|`([^`]+)`")
_OPTIONS = re.compile(r"<!-- options of (\w+) -->")


def _as_text(line: str) -> str:
    """A line of a docstring, in which only backticks mean something."""
    texts, end = [], 0
    for match in _CODE.finditer(line):
        texts += [re.sub(r"([*_|\\`])", r"\\\1", line[end : match.start()]), f"``{match[1] or match[2]}``"]
        end = match.end()
    return "".join([*texts, re.sub(r"([*_|\\`])", r"\\\1", line[end:])])


def docstring_as_rst(lines: list[str]) -> list[str]:
    """Our docstrings are plain text: "name: what it is", further lines indented, is a parameter or a field."""
    found: list[str] = []
    in_item = in_example = False
    for line in lines:
        if line.startswith(">>> ") or (in_example and line.strip()):
            if not in_example:
                found.append("")
            in_example, in_item = True, False
            found.append(line)
        elif not line.strip():
            in_example = in_item = False
            found.append("")
        elif named := _NAMED.match(line):
            if not in_item:
                found.append("")
            in_item = True
            found.append(f"- **{_as_text(named[1])}**: {_as_text(line[named.end() :])}")
        else:
            indent = "  " if in_item else ""
            found.append(f"{indent}{_as_text(line.strip())}")
    return found


def _process_docstring(app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    lines[:] = [] if what == "module" else docstring_as_rst(lines)


def _name_files_outside(app: Any, docname: str, source: list[str]) -> None:
    """A file of the repository that is not in docs/ is not on the site: its name is shown, without the link."""
    source[0] = _OUTSIDE.sub(r"`\1`", source[0])


def _options_of(mark: re.Match[str]) -> str:
    """The options of a command as ``--help-all`` says them, each once."""
    context = click.Context(shh)
    command = shh.get_command(context, mark[1])
    options = {each.opts[0]: copy.copy(each) for each in command.params if each.opts[0][:2] == "--"}
    lines = []
    for option in options.values():
        option.hidden = False
        name, meaning = option.get_help_record(context)
        lines.append(f"- `{name}`: {_as_text(meaning)}")
    return "\n".join(lines)


def _list_options(app: Any, docname: str, source: list[str]) -> None:
    source[0] = _OPTIONS.sub(_options_of, source[0])


def _miss_no_name_or_option(app: Any, env: Any) -> None:
    """Warnings, which `make docs` takes for errors."""
    named = {name.removeprefix("dp_transforms.") for name in env.get_domain("py").objects}
    if missing := sorted(set(dp_transforms.__all__) - named):
        logging.getLogger(__name__).warning("the site does not describe %s", ", ".join(missing))
    if "--most-contributions" not in env.get_doctree("commands").astext():
        logging.getLogger(__name__).warning("the site does not list the options of commands")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("source-read", _name_files_outside)
    app.connect("source-read", _list_options)
    app.connect("env-check-consistency", _miss_no_name_or_option)
