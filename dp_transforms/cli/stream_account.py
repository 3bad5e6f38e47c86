"""A stream that takes part in a ledger: it pays for its whole run when it starts, once for all its restarts."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator

from apache_beam import Secret

from dp_transforms.cli.ledger_account import LedgerAccount
from dp_transforms.cli.stream_pubsub import PubSubSubscription
from dp_transforms.cli.stream_request import StreamRequest
from dp_transforms.runs.fingerprints import key_fingerprint


@contextlib.contextmanager
def accounted(request: StreamRequest, account: LedgerAccount | None) -> Iterator[None]:
    """Runs the block, in which the engine runs the stream, or starts it with --detach.

    Raises UserError if the run does not fit into what is left, and for a run id that was used before, unless the run is
    resumed from what its engine stored: then its restarts draw the same noise for the same records.
    """
    if account is None:
        yield
        return
    account.reserve_part(
        request.plan,
        stream=request.stream,
        run_id=request.run_id,
        input_fingerprint=_fingerprint_of_source(request),
        key_fingerprint=_fingerprint_of_key(request.noise_key),
        draws_once=request.engine.resume_from is None,
    )
    account.start_whole()
    try:
        yield
    except BaseException:
        account.fail()  # what it has published so far stays
        raise
    if not request.detach:  # else the engine runs on, and nobody tells when it has ended
        account.finish()


def _fingerprint_of_source(request: StreamRequest) -> str:
    """What decides which events the records are. The records themselves are still to come."""
    source = request.source
    text = f"pubsub {source.name}" if isinstance(source, PubSubSubscription) else source.fingerprint()
    return hashlib.sha256(text.encode()).hexdigest()


def _fingerprint_of_key(key: Secret | None) -> str:
    """Of the key itself where this process can read it, else of the place where it is."""
    if key is None:
        return secrets.token_hex(32)  # it is drawn for this process and forgotten
    path = getattr(key, "path", None)
    if path is not None:
        with contextlib.suppress(ValueError):
            return key_fingerprint(key.get_secret_bytes())
    return hashlib.sha256(f"noise key at {path or key}".encode()).hexdigest()
