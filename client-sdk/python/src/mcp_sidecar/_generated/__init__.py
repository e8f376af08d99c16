# Written by proto/generate.sh.
"""Code that protoc makes from the contract."""
