"""The user budget: every user pays for tests of its contributions in one currency. Plain numbers, no Beam.

The currency is Renyi divergence at one fixed order; proofs: docs/guarantee.md, "Contributions". Read in this order:

- `look_prices`: what one published bit or level costs a user with some weight, with a certificate over all integer
  counts.
- `price_bounds`: bounds on the prices of many weights at once, which is how plans are made and checked.
- `price_list`: how much divergence an (epsilon, delta) buys at an order; `PriceList`, the weights of a run and their
  prices in whole units of a purse.
- `open_threshold`: the smallest safe threshold of an open domain; what sizes allow for noise; from how many users on
  an item is found.
- `purse_search`: `choose_purse`, the numbers that find most for a budget and a declared activity.
"""
