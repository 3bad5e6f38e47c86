"""What several test modules share. A test module imports no other test module (tests/test_layers.py).

What only one suite needs is beside its tests, as in tests/neighbours and tests/engines.
"""
