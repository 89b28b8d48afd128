"""The command line. Heavy imports wait for the command that needs them, so that help is instant."""

from jointensor.cli.app import main

__all__ = ["main"]
