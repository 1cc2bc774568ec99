"""Errors that cross module boundaries. Each message names what is wrong and how to mend it."""


class EchelonError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(EchelonError):
    """A flag, file or model that cannot be served. Shown to the operator as one line; not worth a restart."""


class AddressInUse(EchelonError):
    """Something else has an address at which this process should listen, for now: worth another try."""


class OutOfStep(EchelonError):
    """A frame, tensor or sample does not belong where it arrived. Fatal: the group restarts."""


class PeerLost(EchelonError):
    """Another process of the group has not answered in time. Fatal: the group restarts."""
