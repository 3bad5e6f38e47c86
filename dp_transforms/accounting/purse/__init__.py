"""The purse: every user pays for its looks, and where wanted for its hits, in one currency. Plain numbers, no Beam.

The currency is Renyi divergence at one fixed order; the proofs are in docs/guarantee.md, section 9, and those of
prices in docs/purse.md. Read in this order:

- `look_prices`: what one published bit costs a user with some weight, with a certificate over all integer counts.
- `level_prices`: what it costs when a level is published instead of a bit.
- `zone_prices`: what it costs besides a price for hits, when what lies above a zone of hits is free.
- `price_bounds`: bounds on the prices of many weights at once, which is how plans are made and checked.
- `order_budget`: how much divergence an (epsilon, delta) buys at an order.
- `price_list`: `PriceList`, the weights of a run and their prices in whole units of a purse.
- `price_work`: a limit on the work that a plan costs when it is read.
- `open_threshold`: the smallest safe threshold of an open domain; what sizes allow for noise; from how many users on
  an item is found.
- `purse_search`, `purse_choice`: `choose_purse`, the numbers that find most for a budget and a declared activity.
"""
