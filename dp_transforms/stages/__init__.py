"""The algorithm as three stages, each a value without Beam and without the key; drivers run them.

    stage          what a stage is; `AtOnceStep`, which runs one on groups of bounded input
    read_pairs     before the stages: events, or chunks of a log -> which items each user holds in each window
    users          the first: what users hold -> what they add to each item, out of a bound, or evenly out of a purse
    items          the second: what all users add to an item -> what is named, or may be
    windows        the third: window after window -> reports; with ThresholdMonitorEvolving where users pay for hits
    rounds         the first two where looks come in rounds: run again for each, on what was named before
    release_stages which three stages a run has, by what its users pay for

A replay, a part of a run, a stream and the worker processes of a replay run these stages. Drivers differ: `at_once` of
`dp_transforms.beam` groups all that belongs together, and `in_order` waits for each window's turn. Where users pay for
looks, the first stage differs too: a replay of a whole run knows what a user will do later, and spreads its purse over
all of it; a part and a stream spend it window after window. Rounds over a log, of a replay or a part, have a first and
a second stage of their own.
"""
