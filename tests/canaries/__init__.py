"""Canaries: a thousand users whose ids, and labels that they alone hold, are random tokens. No token may show anywhere.

- tokens: the tokens, and every spelling in which one could be written down.
- search: looks for all of them at once, also within compressed and encoded data.
- traces: runs a command in a folder of its own, and gathers all that it left or said.
- logs: the logs of these users in each format, whole and broken in many ways.
"""
