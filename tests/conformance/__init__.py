"""Conformance: every mode, by every driver, however its input is cut, against one slow reference
(tests/reference).

cuts                the log of the transcripts, cut, ordered, repeated, late, or without its end
drivers             the doors that users have: replay, worker processes, transform, parts, streams, and one into another
test_conformance    two tables: modes by drivers; a cell says how the log was cut, who read it, what was handed over
dying_engine        runs any pipeline without groupings, and dies between any two bundles
test_dying          streams of every mode on it: one answer for each window

No test here names a step of the algorithm.
"""
