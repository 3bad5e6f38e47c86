"""Keys: how workers get the noise key. It is in a private file, or a fresh draw that never leaves this process. It
travels as a `beam.Secret`, which workers resolve in ``setup()``: the job graph holds a path or a token, never the key.
"""

from __future__ import annotations

import os
import pathlib
import secrets

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions

from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource, PublicItemsTable
from dp_transforms.runs.fingerprints import MAKE_ONE, read_key_file

try:
    from apache_beam.utils.secret import RawSecret
except ImportError:  # Beam before 2.77 has none
    RawSecret = ()

_IN_PROCESS_RUNNERS = ("FnApiRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner", "TestDirectRunner")
_FRESH_KEYS: dict[str, bytes] = {}


class KeyFile(beam.Secret):
    """A key in a file of at least 32 bytes that only its owner can read; each worker needs the file at this path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = os.fspath(path)

    def get_secret_bytes(self) -> bytes:
        """Raises as `read_key_file` does."""
        return read_key_file(self.path)


class FreshKey(beam.Secret):
    """A 256-bit key from the operating system, kept in the memory of the process that drew it and forgotten with it."""

    def __init__(self) -> None:
        super().__init__()
        self._token = secrets.token_hex(8)
        _FRESH_KEYS[self._token] = secrets.token_bytes(32)

    def get_secret_bytes(self) -> bytes:
        """Raises RuntimeError in any other process."""
        try:
            return _FRESH_KEYS[self._token]
        except KeyError:
            raise RuntimeError(
                "the noise key was drawn in another process, and this worker cannot have it."
                " Give all workers one key: noise_key=PATH, or --noise-key-file."
            ) from None


def resolve_noise_key(noise_key: beam.Secret | str | os.PathLike[str] | None, pipeline: beam.Pipeline) -> beam.Secret:
    """The secret for the DoFns of this pipeline.

    noise_key: a path, any `beam.Secret` that fetches its bytes on the worker, or None for a fresh key, which is allowed
        only where the run stays in this process.

    Raises ValueError for a fresh key elsewhere, and for a key that cannot be used.
    """
    if isinstance(noise_key, RawSecret):
        raise ValueError("a RawSecret would be pickled into the job graph. Use a path to a private file instead.")
    if isinstance(noise_key, beam.Secret):
        return noise_key
    if isinstance(noise_key, (str, pathlib.PurePath)):
        key_file = KeyFile(noise_key)
        key_file.get_secret_bytes()  # complain when the pipeline is built, not on a worker
        return key_file
    if noise_key is not None:
        raise ValueError(f"noise_key must be a path, a beam.Secret or None, got a {type(noise_key).__name__}.")
    runner, mode = type(pipeline.runner).__name__, pipeline.options.view_as(DirectOptions).direct_running_mode
    if runner not in _IN_PROCESS_RUNNERS or mode not in (None, "in_memory", "multi_threading"):
        if runner in _IN_PROCESS_RUNNERS:
            runner += f" in mode {mode}"
        raise ValueError(
            f"{runner} runs workers outside this process, which need one noise"
            f" key: give noise_key=PATH, or --noise-key-file. {MAKE_ONE}"
        )
    return FreshKey()


class KeyedDoFn(beam.DoFn):
    """Holds the run and, from ``setup()`` on, the keyed functions of the stream as ``self._keys`` and, for steps that
    need them, the public items as ``self._public_items``."""

    def __init__(self, run: PlannedRun, noise_key: beam.Secret, public_items: PublicItemsSource | None = None) -> None:
        self._run, self._noise_key, self._public_items_source = run, noise_key, public_items
        self._public_items: PublicItemsTable | None = None

    def setup(self) -> None:
        self._keys = self._run.stream_keys(self._noise_key.get_secret_bytes())
        if self._public_items_source is not None:
            self._public_items = self._public_items_source.table(self._keys)
