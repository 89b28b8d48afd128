"""Experiments: whole runs into folders, and the paper's claims."""
