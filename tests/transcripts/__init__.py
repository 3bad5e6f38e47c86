"""Transcripts: what one small log with a fixed key, run id and plan gives, in each mode, of each reader.

cases        the log, written for each reader, and the plan of each mode, made from plain values
drivers      the only door to the code: a replay, a run in parts; and a stream, for tests/conformance
transcript   what a run left as lines of text, the groups of runs that left the same, and the first difference
__main__     `python -m tests.transcripts write` writes data/ anew

A changed line in data/ is a changed answer. A change of the code that means to change none leaves data/ as it is.
"""
