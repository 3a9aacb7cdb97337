"""Wrappers of a library's functions. What torch.compile traces goes past them, so it compiles as it would without."""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..own_errors import contained
from ..session import Session

Told = Callable[..., Any]


def during(owner: Any, session: Session, phases: Mapping[str, str]) -> None:
    """Replace functions of ``owner``: their calls are phases. ``phases``: name of a function -> its phase."""
    for name, phase in phases.items():
        listening(owner, name, inside=functools.partial(session.running, phase))


def listening(
    owner: Any,
    name: str,
    before: Told = lambda *args, **kwargs: None,
    after: Told = lambda *args, **kwargs: None,
    inside: Callable[[], AbstractContextManager] = nullcontext,
    when: Callable[..., bool] = lambda *args, **kwargs: True,
) -> None:
    """Replace ``owner.name``: its calls are heard of.

    ``before`` gets the arguments, ``after`` the result as well. ``inside``: makes the context in which a call runs.
    ``when``: whether a call with these arguments is heard of.
    """
    raw = vars(owner)[name]
    is_wrapped = type(raw) in (classmethod, staticmethod)  # then the replacement gets the same kind of wrapper
    function, rewrap = (raw.__func__, type(raw)) if is_wrapped else (raw, lambda function: function)
    told, heard = contained(before), contained(after)

    @functools.wraps(function)
    def heard_of(*args, **kwargs):
        if torch.compiler.is_compiling() or not when(*args, **kwargs):
            return function(*args, **kwargs)
        told(*args, **kwargs)
        with inside():
            result = function(*args, **kwargs)
        heard(result, *args, **kwargs)
        return result

    setattr(owner, name, rewrap(heard_of))
