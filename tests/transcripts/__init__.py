"""Transcripts: what one small log with a fixed key, run id and plan gives, in each mode, of each reader.

A changed line in data/ is a changed answer. A change of the code that means to change none leaves data/ as it is.
"""
