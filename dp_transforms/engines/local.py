"""Runs a pipeline on this machine, in this process, by Beam's FnApiRunner; and says whether a runner is a local one.

Whoever types ``DirectRunner``, ``direct`` or nothing gets the FnApiRunner: Beam's own DirectRunner would choose an
engine by itself, and try to download one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from dp_transforms.engines.on_loopback import listen_on_loopback

LOCAL_RUNNER = "FnApiRunner"
_NAMES_OF_LOCAL = (None, "DirectRunner", "direct", LOCAL_RUNNER)
_View = TypeVar("_View", bound=PipelineOptions)


class KnownOptions(PipelineOptions):
    """As `PipelineOptions`. Building one pipeline asks for 200 views of them, and Beam parses all words for each of
    these anew, which takes a quarter of the time."""

    def view_as(self, cls: type[_View]) -> _View:
        views: dict[type[PipelineOptions], PipelineOptions] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)  # shares its values with all others
        return cast(_View, views[cls])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_views"}


def pipeline_options(arguments: Sequence[str]) -> PipelineOptions:
    """Beam's options from the command line; the local runner unless they name another.

    Servers that Beam starts in this process, for workers in others, listen on the loopback address alone from now on.
    Raises ValueError for an option that the local runner does not know; other runners may know more.
    """
    listen_on_loopback()
    options = KnownOptions(list(arguments))
    standard = options.view_as(StandardOptions)
    if standard.runner in _NAMES_OF_LOCAL:
        standard.runner = LOCAL_RUNNER
        unknown = set(options.get_all_options(retain_unknown_options=True)) - set(options.get_all_options())
        unknown.update(word for word in arguments[:1] if not word.startswith("-"))
        if unknown:
            raise ValueError(f"Beam has no option {', '.join(sorted(unknown))}. Check what follows --.")
    return options


def is_local(options: PipelineOptions) -> bool:
    """Whether the work is done on this machine."""
    return bool(options.view_as(StandardOptions).runner == LOCAL_RUNNER)
