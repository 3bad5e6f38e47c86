"""What is tried: a reader of the product, valid samples of what it reads, and what must hold for every mutated input.

A mutated input is named by (reader, seed, number) and by nothing else: the same name gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.mutators import Mutator, mutate

# In every cell of a log among the samples, one of these: no error may hold any of them. Others stand in labels of
# reports, plans and names of runs, which are public.
CELL_MARKS = ("QZX", "471100", "41:27")


class FaultError(Exception):
    """Something that must not be. kind: in one word."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class Sample:
    """A valid input. ending: of its file. context: what the reader needs beside the bytes."""

    name: str
    data: bytes
    ending: str = ""
    mutators: Sequence[Mutator] = ()
    context: Any = None


@dataclasses.dataclass(frozen=True)
class Reader:
    """One entrance of the product.

    refusals: the types of the errors it may raise, these exactly: a subclass is another library's.
    place: puts the bytes where they are read from, (folder, a name no other case has, sample, bytes); gives what
        ``read`` takes.
    read: reads all of it. Returns something to compare with what the second reading returns. Raises the refusals, or
        FaultError.
    settle_seconds: between placing and reading.
    cost: about how many milliseconds of CPU each case takes; a campaign gives each reader cases by it.
    marks: what errors may not hold.
    """

    name: str
    samples: Callable[[], Sequence[Sample]]
    refusals: tuple[type[BaseException], ...]
    place: Callable[[str, str, Sample, bytes], Any]
    read: Callable[[Sample, Any], Any]
    settle_seconds: float = 0.0
    cost: float = 1.0
    marks: tuple[str, ...] = CELL_MARKS


@dataclasses.dataclass(frozen=True)
class MutatedInput:
    number: int
    sample: Sample
    data: bytes


def mutated_input(reader: Reader, samples: Sequence[Sample], seed: int, number: int) -> MutatedInput:
    rng = random.Random(f"{reader.name}:{seed}:{number}")
    sample = rng.choice(samples)
    others = [other.data for other in samples if other.ending == sample.ending]
    return MutatedInput(number, sample, mutate(rng, sample.data, others, sample.mutators))


def place_file(folder: str, name: str, sample: Sample, data: bytes) -> str:
    path = os.path.join(folder, name + sample.ending)
    with open(path, "wb") as file:
        file.write(data)
    return path


def place_bytes(_folder: str, _name: str, _sample: Sample, data: bytes) -> bytes:
    return data


def outcome(reader: Reader, sample: Sample, placed: Any) -> tuple[str, Any]:
    """("accepted", what was read) or ("refused", the words). Raises FaultError for everything that must not be."""
    try:
        return "accepted", reader.read(sample, placed)
    except FaultError:
        raise
    except RecursionError as error:
        raise FaultError("uncaught", f"RecursionError at {_place(error)}") from None
    except Exception as error:
        if type(error) not in reader.refusals:
            raise FaultError("uncaught", f"{type(error).__name__} at {_place(error)}") from error
        check_words(str(error), reader.marks)
        return "refused", str(error)


def one_input(reader: Reader, data: bytes) -> None:
    """In the form of libFuzzer, atheris and OSS-Fuzz: bytes in, errors for faults. The first byte chooses the sample
    that lends its ending and context."""
    samples = reader.samples()
    if data:
        sample = samples[data[0] % len(samples)]
        with tempfile.TemporaryDirectory() as folder:
            place = reader.place(folder, "input", sample, data[1:])
            time.sleep(reader.settle_seconds)
            outcome(reader, sample, place)


def check_words(text: str, marks: Sequence[str]) -> None:
    """One printable line without a cell."""
    if not text.strip() or not text.isprintable():
        raise FaultError("words", f"not one printable line: {text[:200]!r}")
    if len(text) > 4000:
        raise FaultError("words", f"{len(text)} characters: {text[:200]!r}")
    # Fields are named by the schema, where it is the schema that is mended; they are no cells.
    before, _, rest = text.partition("its fields are: ")
    checked = before + rest.partition(". Name one with")[2]
    for mark in marks:
        if mark in checked:
            raise FaultError("cell", f"the error holds {mark}: {text[:200]!r}")


def _place(error: BaseException) -> str:
    """The last place of the product on the way to the error."""
    place, step = "?", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if "/dp_transforms/" in name:
            place = f"dp_transforms/{name.split('/dp_transforms/')[-1]}:{step.tb_lineno}"
        step = step.tb_next
    return place
