"""Where workers find the items of a known domain: in a file that all of them can read, or in the job itself."""

from __future__ import annotations

import os

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.utils.shared import Shared

from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.item_domain import MOST_DOMAIN_BYTES, ItemDomain
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.domain_table import DomainTable


class DomainSource:
    """The domain of a plan. Its table is made once a process, whichever stage asks first.

    domain: a path, of a local file or one that Beam's file systems know, which travels instead of the items; or an
        `ItemDomain`, which is pickled with its items into the job graph.
    Raises ValueError unless it is the domain that the plan was made for; workers check it again.
    """

    def __init__(self, domain: ItemDomain | str | os.PathLike[str], plan: ReleasePlan) -> None:
        if not isinstance(domain, (ItemDomain, str, os.PathLike)):
            raise ValueError(f"domain must be a path or an ItemDomain, got a {type(domain).__name__}.")
        if not plan.domain_size:
            raise ValueError(
                "the plan is one for an open domain. Calibrate it for this list of items, or give no domain."
            )
        self._domain = domain if isinstance(domain, ItemDomain) else _path_for_workers(os.fspath(domain))
        self._size = plan.domain_size
        self._fingerprint = plan.domain_fingerprint
        self._shared = Shared()
        self._checked_domain()

    def table(self, keys: StreamKeys) -> DomainTable:
        """The items by their keyed hashes. keys: the same ones in all stages of a run."""

        def load() -> DomainTable:
            return DomainTable.of_labels(self._checked_domain().labels, keys.item_ids)

        return self._shared.acquire(load)  # type: ignore[no-any-return]

    def _checked_domain(self) -> ItemDomain:
        domain = self._domain if isinstance(self._domain, ItemDomain) else read_domain(self._domain)
        if domain.fingerprint != self._fingerprint:
            raise ValueError(
                f"the domain ({domain.size:,} items) is not the one of the plan ({self._size:,} items). Give the list"
                " that the plan was made for, or make a new plan."
            )
        return domain


def _path_for_workers(path: str) -> str:
    """Workers may stand in another folder."""
    return path if "://" in path else os.path.abspath(path)


def read_domain(path: str) -> ItemDomain:
    """`ItemDomain.of_text` of a file that any worker may have to fetch. Raises ValueError."""
    try:
        with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            return ItemDomain.of_text(file.read(MOST_DOMAIN_BYTES + 1), path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or type(error).__name__}.") from None
