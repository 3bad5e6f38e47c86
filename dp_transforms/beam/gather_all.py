"""Gather all: the elements of a bounded PCollection -> one group."""

from __future__ import annotations

import apache_beam as beam


def gather_all(encoded: beam.PCollection, transform: str) -> beam.PCollection:
    """All elements, opaque bytes, as one group, which also exists when there are none. It then holds an empty element.

    transform: the name of the one that needs it, for errors. Raises ValueError for unbounded input.
    """
    if not encoded.is_bounded:
        raise ValueError(
            f"{transform} needs bounded input, because its file appears when the input ends."
            " Use WriteReportStream or WriteRejectedFolder for a stream."
        )
    globally = encoded | "WindowGlobally" >> beam.WindowInto(beam.window.GlobalWindows())
    # An empty element stands for "the input has ended": bytes of a report or of rejected events are never empty.
    sentinel = encoded.pipeline | "EvenIfEmpty" >> beam.Create([b""]).with_output_types(bytes)
    return (
        (globally, sentinel)
        | "AddSentinel" >> beam.Flatten()
        | "OneKey" >> beam.WithKeys(0).with_output_types(tuple[int, bytes])
        | "Gather" >> beam.GroupByKey()
        | "DropKey" >> beam.Values()
    )
