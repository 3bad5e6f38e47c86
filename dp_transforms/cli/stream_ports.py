"""Refuses a run whose ports other machines can reach: Beam runs the code that they send, and needs no password."""

from __future__ import annotations

import ipaddress

from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.stream_options import FLINK, PRISM
from dp_transforms.engines.addresses import LOCAL
from dp_transforms.engines.open_ports import addresses_of, is_loopback, is_open_here, open_ports
from dp_transforms.errors import UserError

_WHY = "Beam needs no password there and runs the code that it is sent, beside the noise key"
_ALLOW = "close it off by other means (docs/deploy.md) and give --allow-open-ports"
_REMEDIES = {
    PRISM: "Build one that listens only on this machine with: make prism; or",
    FLINK: "Build a job server that listens only on this machine with: make flink; or",
}


def check_ports(engine: str, *, allow: bool) -> None:
    """Raises UserError if other machines can now reach a process of this command.

    engine: the name of the engine. allow: print a warning on stderr, and go on.
    """
    found = open_ports()
    if allow:
        for port in found:
            tell(f"--allow-open-ports: other machines may reach {port}.")
        return
    if not found:
        return
    remedy = _REMEDIES.get(engine, "Leave out the options after --, or")
    raise UserError(f"--engine {engine} listens beyond this machine: {found[0]}. {_WHY}. {remedy} {_ALLOW}.")


def check_worker_pool(pool: str, flink_master: str) -> None:
    """Raises UserError if strangers can reach the pool, as far as this machine can know.

    pool, flink_master: "host:port", the latter also "[local]". Names are looked up here; a name that only the cluster
    knows is taken for a private one.
    """
    addresses = addresses_of(pool.rpartition(":")[0])
    if any(ipaddress.ip_address(address).is_global for address in addresses):
        raise UserError(
            f"--worker-pool {pool} has an address of the internet. {_WHY}. Start the pool where task managers reach it"
            f" by localhost or on a private network, or {_ALLOW}."
        )
    port = int(pool.rpartition(":")[2])
    is_flink_here = flink_master == LOCAL or _is_here(addresses_of(flink_master.rpartition(":")[0]))
    if is_flink_here and _is_here(addresses) and is_open_here(port):
        raise UserError(
            f"--worker-pool {pool} listens beyond this machine. {_WHY}. Start it with python -m"
            " dp_transforms.engines.on_loopback apache_beam.runners.worker.worker_pool_main"
            f" --service_port={port}, or {_ALLOW}."
        )


def _is_here(addresses: list[str]) -> bool:
    return bool(addresses) and all(is_loopback(address) for address in addresses)
