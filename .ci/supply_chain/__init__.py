"""What the software is made of: `audit` checks it against known advisories, `sbom` lists it. Not part of the package.

The tools have an environment of their own: what they need must neither be audited as ours nor decide the versions of
what we need.
"""
