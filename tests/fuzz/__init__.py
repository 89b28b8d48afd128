"""Hostile input: mutated files for every reader. ``python -m tests.fuzz.run --help`` says how to run many."""
