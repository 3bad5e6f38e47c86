"""One function for a continuous fuzzer, in the form of libFuzzer, atheris and OSS-Fuzz: bytes in, errors for faults.

    pip install atheris
    python -m tests.fuzz.continuous READER CORPUS   # a folder; further words are those of libFuzzer

The fuzzer changes the inputs, beginning with the samples of the reader, by what of the product they reach.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from collections.abc import Callable


def one_input(reader: str) -> tuple[Callable[[bytes], None], list[bytes]]:
    """``TestOneInput`` of a reader, and inputs to begin with. The first byte chooses the sample that lends its ending
    and context."""
    from tests.fuzz.reader import outcome  # with the product, which an importer may instrument
    from tests.fuzz.readers import all_readers

    chosen = all_readers()[reader]
    samples = chosen.samples()

    def test_one_input(data: bytes) -> None:
        if data:
            sample = samples[data[0] % len(samples)]
            with tempfile.TemporaryDirectory() as folder:
                outcome(chosen, sample, chosen.place(folder, "input", sample, data[1:]))

    return test_one_input, [bytes([number]) + sample.data for number, sample in enumerate(samples)]


def main() -> None:
    import atheris

    name, corpus = sys.argv[1], pathlib.Path(sys.argv[2])
    with atheris.instrument_imports(include=["dp_transforms"]):
        test_one_input, inputs = one_input(name)
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(inputs):
        (corpus / f"sample{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
