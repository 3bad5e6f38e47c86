"""The core of release mode `names` on numpy columns: users pay for looks. Imports no Beam and no accounting.

naming_settings   the plain numbers of a plan that workers need
"""
