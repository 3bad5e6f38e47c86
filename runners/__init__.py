"""Options and helpers of each engine; nothing of differential privacy."""
