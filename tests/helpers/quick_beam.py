"""Beam looks at the same functions and options thousands of times for each pipeline: here it remembers what it saw.

Half of what a small pipeline costs is `inspect.signature` of the methods of its DoFns, parsers that are built anew for
each look at an option, and the best compression of what is pickled. The first two are functions of what they are given;
data that is pickled again is packed once, and less tightly. Nothing else of Beam is changed.
"""

from __future__ import annotations

import bz2
import copy
import functools
import types
import weakref
from typing import Any

from apache_beam.internal import cloudpickle_pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core

_is_installed = False


def install() -> None:
    """In this process, once."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        core.get_function_args_defaults = _remembered_arguments(core.get_function_args_defaults)
        PipelineOptions.view_as = _remembered_view(PipelineOptions.view_as)
        cloudpickle_pickler.bz2 = types.SimpleNamespace(
            compress=lambda data, compresslevel: _packed(data), decompress=bz2.decompress
        )


@functools.lru_cache(64)  # the same DoFn is pickled several times within a pipeline
def _packed(data: bytes) -> bytes:
    return bz2.compress(data, 1)


def _remembered_arguments(inspect: Any) -> Any:
    """Of a method the function alone decides."""
    seen: weakref.WeakKeyDictionary[Any, tuple[list[str], list[Any]]] = weakref.WeakKeyDictionary()

    def arguments(f: Any) -> tuple[list[str], list[Any]]:
        if type(f) is not types.MethodType or type(f.__func__) is not types.FunctionType:
            return inspect(f)  # type: ignore[no-any-return]
        if f.__func__ not in seen:
            seen[f.__func__] = inspect(f)
        names, defaults = seen[f.__func__]
        return list(names), list(defaults)

    return arguments


def _remembered_view(view_as: Any) -> Any:
    """The class and the flags decide what is parsed; what was set since then is shared by all views, as before."""
    parsed: dict[tuple[Any, ...], Any] = {}

    def view(options: Any, cls: Any) -> Any:
        flags = options._flags
        if not isinstance(flags, list | tuple) or "__init__" in cls.__dict__:
            return view_as(options, cls)
        key = (cls, *flags)
        if key not in parsed:
            found = view_as(options, cls)
            parsed[key] = copy.deepcopy(found._visible_options)
            return found
        found = cls.__new__(cls)
        found._flags, found._visible_options = flags, copy.deepcopy(parsed[key])
        for name, value in vars(found._visible_options).items():
            if not name.startswith("_"):
                options._all_options.setdefault(name, value)
        found._all_options = options._all_options
        return found

    return view
