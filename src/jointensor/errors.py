"""Every error a user can cause, by kind. Each message names what was given and what to do."""


class JointensorError(Exception):
    """Base of all errors raised on purpose; the command line prints its message and exits with 1."""


class DataError(JointensorError, ValueError):
    """The observations are not a tensor: a bad value, label, index, column or file."""


class ConfigError(JointensorError, ValueError):
    """An option, or a combination of options, that has no meaning."""


class RunError(JointensorError):
    """A run folder that cannot be made, is unfinished, or is not what was written."""


class KeptRunError(RunError):
    """A run that could not be finished; its folder stays for ``--resume``."""


class MissingPackageError(JointensorError, ImportError):
    """An optional package is needed for what was asked."""


class MemoryFullError(JointensorError, MemoryError):
    """A device has too little memory, and smaller steps did not help."""


class ProcessGroupError(JointensorError):
    """Processes of one job that cannot find each other, have come apart, or do not answer."""


class LostProcessError(ProcessGroupError):
    """Another process has ended or does not answer; it may have reported the reason."""
