"""A noise key in Google Secret Manager, which workers fetch themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dp_transforms.errors import UserError

if TYPE_CHECKING:
    from apache_beam import GcpSecret

_VERSION = re.compile(r"projects/[^/\s]+/secrets/[^/\s]+/versions/[1-9]\d*")


def noise_key_secret(version: str) -> GcpSecret:
    """version: of ``--noise-key-secret``. Nothing is fetched. Raises UserError for anything but a fixed version."""
    if not _VERSION.fullmatch(version):
        raise UserError(
            "--noise-key-secret must be projects/P/secrets/S/versions/N with a number N: a key must not change"
            " while a run goes on."
        )
    from apache_beam import GcpSecret  # a stream waits for Beam anyway; a replay here must not

    return GcpSecret(version)
