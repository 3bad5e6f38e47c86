"""Engines and their options. Nothing of differential privacy.

- flink, flink_rest: flags, job server and worker pool; the REST interface of a cluster.
- prism: Beam's engine for one machine, the binary of ``make prism``.
- portable: Beam's FnApiRunner, which works on this machine; the Beam flags that every engine with a job service
  understands, and the name of a job.
- submitted: what a job needs that is submitted by Beam's own runners (pipelines/*.py), with checks for Dataflow.
- engine_process: the programs of engines: where they are, how they start, and that they always end.
- on_loopback: makes Beam's servers listen on the loopback address alone.
- this_machine: cores and memory, which addresses are its own alone, and which ports of its processes others can reach
  (with the extra `engines`).

The folder runners, beside the package, has what ``make engines`` builds Flink's job server and Kafka from. What only
demos, benchmarks and tests start, a cluster of two processes and a broker, is in examples/demos.
"""
