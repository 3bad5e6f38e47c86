"""Names of engines' addresses, for whoever must not wait for an engine."""

from __future__ import annotations

LOCAL = "[local]"  # a Flink that is started here
