"""Load: a path or the job graph -> the items of a known domain, on a worker."""

from __future__ import annotations

import os

import pyarrow as pa
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.utils.shared import Shared

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.domain_table import DomainTable
from dp_transforms.monitor.item_domain import MOST_DOMAIN_BYTES, ItemDomain
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.stores.remote_files.stored_file import SCHEMES

_MOST_BYTES_IN_JOB_GRAPH = 5_000_000
_KEY_CHECK = pa.array(["which item hashes are these?"])


class DomainSource:
    """The domain of a plan. Its table is built once per process and run, by the first step that needs it.

    domain: the path of a file that every worker can read: local, a URL of `dp_transforms.stores.remote_files`, or
        another one that Beam's file systems know. Only the path travels. Or an `ItemDomain` of at most 5 MB, which is
        pickled with its items into the job graph.
    Raises ValueError unless it is the domain that the plan was made for; workers check it again.
    """

    def __init__(self, domain: ItemDomain | str | os.PathLike[str], plan: ReleasePlan) -> None:
        if not isinstance(domain, (ItemDomain, str, os.PathLike)):
            raise ValueError(f"domain must be a path or an ItemDomain, got a {type(domain).__name__}.")
        if not plan.domain_size:
            raise ValueError("the plan is for an open domain. Calibrate it for this list of items, or give no domain.")
        if isinstance(domain, ItemDomain) and domain.labels.nbytes > _MOST_BYTES_IN_JOB_GRAPH:
            raise ValueError(
                f"a domain that travels in the job graph must have at most {_MOST_BYTES_IN_JOB_GRAPH / 1e6:g} MB, got"
                f" {domain.labels.nbytes / 1e6:.1f} MB. Write it to a file, one item a line, and give its path."
            )
        self._domain = domain if isinstance(domain, ItemDomain) else _path_for_workers(os.fspath(domain))
        self._size = plan.domain_size
        self._fingerprint = plan.domain_fingerprint
        self._shared = Shared()
        self._checked_domain()

    def table(self, keys: StreamKeys) -> DomainTable:
        """The items by their keyed hashes. keys: the same in all steps of a run.

        One source can serve several runs with different keys (a transform that is applied twice). So the table is kept
        under the keyed hash of a fixed text, which differs from key to key and does not reveal the key.
        """

        def load() -> DomainTable:
            return DomainTable.of_labels(self._checked_domain().labels, keys.hash_items)

        which_keys = keys.hash_items(_KEY_CHECK).tobytes().hex()
        return self._shared.acquire(load, tag=which_keys)  # type: ignore[no-any-return]

    def _checked_domain(self) -> ItemDomain:
        domain = self._domain if isinstance(self._domain, ItemDomain) else read_domain(self._domain)
        return domain.checked(self._size, self._fingerprint)


def domain_of_plan(domain: ItemDomain | str | os.PathLike[str] | None, plan: ReleasePlan) -> DomainSource | None:
    """The domain that workers use; None for an open one. Raises ValueError unless it is the plan's."""
    if domain is None and plan.domain_size:
        raise ValueError(f"the plan is for a known domain of {plan.domain_size:,} items. Give domain=PATH.")
    return None if domain is None else DomainSource(domain, plan)


def _path_for_workers(path: str) -> str:
    """Workers may have another current folder."""
    return path if "://" in path else os.path.abspath(path)


def read_domain(path: str) -> ItemDomain:
    """`ItemDomain.of_text` of a file that any worker may need to fetch. Raises ValueError."""
    if "://" not in path or path.partition("://")[0] in SCHEMES:  # Beam would wait for a pipe
        return ItemDomain.read(path)
    try:
        with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            return ItemDomain.of_text(file.read(MOST_DOMAIN_BYTES + 1), path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or type(error).__name__}.") from None
