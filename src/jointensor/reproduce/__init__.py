"""Every table and figure of the paper by one command: ``jointensor reproduce NAME``, ours beside the paper's."""
