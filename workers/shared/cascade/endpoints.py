"""Where the processes of a cascade listen."""


def endpoint_of(cascade: str, model: int) -> str:
    """The address of model number `model`, 0 being the smallest; `cascade` is that of the configuration."""
    return f"{cascade}-{model}"
