"""Conformance: every mode, by every driver, however its input is cut, against one slow reference
(tests/reference).

No test here names a step of the algorithm.
"""
