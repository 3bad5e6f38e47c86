"""What a browser shows: page, a report or a plan as one file; serving, the live page of ``shh serve``."""
