"""What an allocation is for, from the code that made it."""


def kind_of(phase: str, where: str, function: str, gradient: bool) -> str:
    return phase
