"""One file per format: read, scan in chunks, write."""
