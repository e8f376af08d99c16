# Written by proto/generate.sh.
"""The version of this package and of the contract."""

VERSION = "0.1.0"
