"""Modules whose doctests need packages of an extra."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("sktime") else ["jointensor/sktime.py"]
