"""Worker processes of a local replay: how many, how much memory, and what they begin with before Beam is loaded; and
whether a replay fits into the memory of one process."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
from collections.abc import Sequence

import click

from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import user_errors
from dp_transforms.cli.plan_options import schedule_from_options
from dp_transforms.cli.replay_request import ReplayOptions, ReplayRequest, WorkOptions
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.errors import PoolError, UserError
from dp_transforms.local import ProcessPool
from dp_transforms.local.read_contributions import ReadContributionsStep, reading_step
from dp_transforms.logs import EventFields, LogChunk, estimate_log, find_log_chunks, most_label_bytes, spread_chunks
from dp_transforms.plan.plan import HITS
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.fingerprints import read_key_file
from dp_transforms.stores.remote_files import is_remote, look_at
from dp_transforms.views.report_words import counted

LIBRARIES = ("pyarrow.parquet", "dp_transforms.local.read_contributions", "dp_transforms.core.steps")
_SMALL_LOG_BYTES = 4_000_000  # a smaller log is read before other processes have started
_BYTES_OF_THIS_PROCESS = 350_000_000
_MOST_IN_THIS_PROCESS = 2_000_000_000  # a worker takes less for the same: what lies between its steps is in files
_BYTES_OF_A_WORKER = 350_000_000  # its libraries, and the columns of one task
_EVENTS_PER_SHARD = 1_250_000
_LABEL_BYTES_PER_SHARD = 32_000_000  # a worker takes four times as much
_WIDE_ROW = 256  # bytes; of narrower ones so many events are less
_BYTES_PER_EVENT = 20  # of formats that do not say how many rows they have; rather too few
_MOST_SHARDS = 256
_MANY_IN_WINDOWS = 10_000_000
_FEWEST_EVENTS = 30  # of a user: where fewer count in all their windows it is said
# Peak memory of a replay on the local runner, measured by benchmarks/speed.py and rounded up.
_BASE_BYTES = 400_000_000
_MEMORY_PER_EVENT = 120
_BYTES_PER_LONG_LABEL_BYTE = 6
_BYTES_PER_DOMAIN_BYTE = 7
_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """That this process may use; of a container with a share of a core, one."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open(_CPU_QUOTA) as file:
            quota, period = map(int, file.read().split())
    except (OSError, ValueError):  # no such controller, or "max"
        return found
    return max(1, min(found, quota // period))


def free_memory_bytes() -> int:
    """Memory that this process may still take: what the machine has, or its container if that is less."""
    free = _available_bytes()
    for path in _CGROUP_LIMITS:
        try:
            with open(path) as file:
                limit = int(file.read())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the most that it ever had
        free = min(free, max(0, limit - used))
    return free


def _available_bytes() -> int:
    """Without swapping, as Linux says; of another system half of what it has."""
    try:
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file)
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def pool_for(options: ReplayOptions) -> ProcessPool | None:
    """Starts worker processes, before anything is known of the log but the size of local files; None if these are
    small, or the replay is not by such workers.

    Raises UserError for options that contradict each other.
    """
    work = options.work
    if options.part.state is not None:
        for name, wanted in (("--processes", work.processes not in (None, 1)), ("--memory", work.memory is not None)):
            if wanted:
                raise UserError(
                    f"{name} cannot be used with --state: each window is taken by this process, in order. Leave {name}"
                    " out."
                )
        return None
    number = _number(_bytes_of(options.logs), work)
    return _start(number, work) if number > 1 else None


def pool_for_request(request: ReplayRequest) -> ProcessPool | None:
    """The same when all is known, and one worker process for a log that does not fit into the memory of this one; None
    for a replay by this process."""
    number = _workers_for(request)
    return _start(number, request.options.work) if number else None


def read_early(pool: ProcessPool, options: ReplayOptions) -> None:
    """Begins to read the log before its plan is made, where the command line says enough.

    Whatever is wrong with it is found again, and told, when the replay is checked.
    """
    unknown = (options.plan_file, options.plan.public_items, options.account.ledger)
    if any(path is not None for path in unknown) or any(map(is_remote, options.logs)):
        return
    with contextlib.suppress(ValueError, UserError, click.UsageError):
        fields, schedule = options.fields.fields(), schedule_from_options(options.plan)
        pays_looks = options.plan.charge != HITS
        chunks = find_log_chunks(options.logs, fields)
        shards = shards_of_log(chunks, schedule, fields, pays_looks=pays_looks)
        step = reading_step(schedule, fields, shards, pays_looks=pays_looks)
        _begin(pool, step, chunks, options.noise_key_file)


def read_ahead(pool: ProcessPool, request: ReplayRequest) -> None:
    """Begins to read the log, if it has not begun. Raises ValueError for a noise key that cannot be used."""
    plan, domain = request.plan, None
    if request.public_items is not None and plan.domain is not None:
        domain = PublicItemsSource(request.public_items, plan.domain.size, plan.domain.fingerprint)
        pool.memory_bytes -= (pool.processes + 1) * _bytes_of_domain(request.public_items)
    step = reading_step(plan.schedule, request.fields, request.shards, domain, pays_looks=plan.looks is not None)
    _begin(pool, step, request.chunks, request.options.noise_key_file)


def _begin(pool: ProcessPool, step: ReadContributionsStep, chunks: Sequence[LogChunk], key_file: str | None) -> None:
    if pool.secret is None:
        pool.use_key(secrets.token_bytes(32) if key_file is None else read_key_file(key_file))
    for joined in spread_chunks(chunks, step.fields, pool.processes):
        pool.submit_ahead(step, joined)


def shards_of_log(
    chunks: Sequence[LogChunk], schedule: WindowSchedule, fields: EventFields, *, pays_looks: bool
) -> int | None:
    """Into how many parts users and items are cut, so that each fits into a worker; None where windows are cut too."""
    if not pays_looks:
        return None
    by_events = -(-_events_in_windows(chunks, schedule) // _EVENTS_PER_SHARD)
    return min(_MOST_SHARDS, max(8, by_events, -(-_long_label_bytes(chunks, fields) // _LABEL_BYTES_PER_SHARD)))


def _long_label_bytes(chunks: Sequence[LogChunk], fields: EventFields) -> int:
    """About how many; 0 where rows are narrow, or not counted: then `_events_in_windows` goes by bytes."""
    counted_rows = [chunk for chunk in chunks if chunk.events]
    size = sum(max(chunk.bytes, chunk.unpacked) for chunk in counted_rows)
    if size <= _WIDE_ROW * sum(chunk.events or 0 for chunk in counted_rows):
        return 0
    return min(size, estimate_log(counted_rows, fields).long_label_bytes)


def _events_in_windows(chunks: Sequence[LogChunk], schedule: WindowSchedule) -> int:
    """About how many, each as often as it counts."""
    rows = sum(chunk.bytes // _BYTES_PER_EVENT if chunk.events is None else chunk.events for chunk in chunks)
    return rows * schedule.windows_per_event


def sliding_words(request: ReplayRequest) -> str | None:
    """What windows that overlap cost, in a sentence; None where they cost little."""
    schedule = request.plan.schedule
    in_windows, repeats = _events_in_windows(request.chunks, schedule), schedule.windows_per_event
    plan, words = request.plan, []
    if repeats > 1 and in_windows >= _MANY_IN_WINDOWS:
        words.append(f"this takes the time of about {in_windows:,} events, and space for them in --memory or in TMPDIR")
    if plan.looks is not None and repeats > 1:
        events = min(plan.units_of_rounds) // plan.looks.units[0] // repeats
        if events < _FEWEST_EVENTS:
            words.append(f"only about {max(1, events):,} of a user count, since each is paid (--most-contributions)")
    if not words:
        return None
    return f"Each event counts in {repeats:,} windows: {'; and '.join(words)}. A longer --slide helps."


def _workers_for(request: ReplayRequest) -> int:
    """How many; 0 where this process does all. What an event costs is the same in each of its windows."""
    work = request.options.work
    number = _number(sum(chunk.bytes for chunk in request.chunks) * request.plan.schedule.windows_per_event, work)
    if number > 1:
        return number
    memory = work.memory or free_memory_bytes()
    if work.processes is None:
        memory = min(memory, _MOST_IN_THIS_PROCESS)
    return 0 if fits(memory, request) else 1


def _number(log_bytes: int, work: WorkOptions) -> int:
    """Of processes. By default one for each core, as far as memory goes: a worker that has not enough of it spills."""
    if work.processes is not None or log_bytes < _SMALL_LOG_BYTES:
        return work.processes or 1
    memory = work.memory or free_memory_bytes()
    return min(cores(), max(1, (memory - _BYTES_OF_THIS_PROCESS) // (2 * _BYTES_OF_A_WORKER)))


def _start(number: int, work: WorkOptions) -> ProcessPool:
    if warning := _too_little_memory(number, work):
        tell(warning)
    stored = max(0, (work.memory or free_memory_bytes()) - _bytes_of_processes(number))
    with user_errors(PoolError):
        return ProcessPool(number, stored, shows_faults=work.verbose, libraries=LIBRARIES)


def _bytes_of_processes(workers: int) -> int:
    return _BYTES_OF_THIS_PROCESS + workers * _BYTES_OF_A_WORKER


def _too_little_memory(workers: int, work: WorkOptions) -> str | None:
    """What to say of a --memory that so many workers cannot keep to."""
    taken = _bytes_of_processes(workers)
    if work.memory is None or work.memory >= taken:
        return None
    return (
        f"--memory is less than this command with {counted(workers, 'worker')} may take, {taken / 1e9:.2f} GB, even"
        " with all that lies between two steps on disk."
    )


def _bytes_of(logs: Sequence[str]) -> int:
    """Of local files and folders; 0 for what takes a search or a store to find."""
    below = (os.path.join(folder, name) for log in logs for folder, _, names in os.walk(log) for name in names)
    return sum(map(_size, (*below, *(log for log in logs if not os.path.isdir(log)))))


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # a URL or a glob, or reading will say why it cannot be read
        return 0


def large_log_words(request: ReplayRequest) -> str | None:
    """What to say of a log that may not fit into the memory of this process, which does all the work."""
    events, needed = _needed(request)
    free = free_memory_bytes()
    if needed <= free:
        return None
    repeats = request.plan.schedule.windows_per_event
    in_windows = f", each in {repeats} sliding windows," if repeats > 1 else ""
    return (
        f"shh: warning: about {events:,} events{in_windows} may need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are"
        " free. If memory ends, nothing is published. Parts of shorter logs need less."
    )


def memory_words(request: ReplayRequest) -> str:
    """What a replay on this machine takes, in a sentence."""
    needed, free = _needed(request)[1] / 1e9, free_memory_bytes() / 1e9
    workers = _workers_for(request)
    who = "One process does" if workers < 2 else f"{workers} processes do"
    words = f"{who} the work. All at once it needs about {needed:.1f} GB, and {free:.1f} GB are free."
    warning = _too_little_memory(workers, request.options.work) if workers else None
    return f"{words} {warning}" if warning else words


def fits(memory_bytes: int, request: ReplayRequest) -> bool:
    """Whether one process can do it in so much memory, also if all labels are as long as they can be."""
    repeats = request.plan.schedule.windows_per_event
    labels = most_label_bytes(request.chunks) * repeats * _BYTES_PER_LONG_LABEL_BYTE
    return _BASE_BYTES + labels <= memory_bytes and _needed(request)[1] <= memory_bytes  # the second reads some rows


def _needed(request: ReplayRequest) -> tuple[int, float]:
    """About how many events there are, and bytes of memory that they need."""
    log = estimate_log(request.chunks, request.fields)
    per_window = log.events * _MEMORY_PER_EVENT + log.long_label_bytes * _BYTES_PER_LONG_LABEL_BYTE
    needed = _BASE_BYTES + request.plan.schedule.windows_per_event * per_window
    return log.events, needed + _bytes_of_domain(request.public_items)


def _bytes_of_domain(path: str | None) -> int:
    """In the memory of a process that has it."""
    if path is None:
        return 0
    return _BYTES_PER_DOMAIN_BYTE * (look_at(path).size if is_remote(path) else _size(path))
