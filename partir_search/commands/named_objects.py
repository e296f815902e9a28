"""Steps and arguments named on the command line, ``package.module:function``."""

from __future__ import annotations

import importlib
import os
import pathlib
import traceback
from collections.abc import Callable
from typing import Any

import jax

from partir_search.calling.partitioned import AutoPartitioned
from partir_search.messages.wording import did_you_mean, shown

PACKAGE = str(pathlib.Path(__file__).parent.parent)
_OTHERS = ("<frozen", f"{os.sep}site-packages{os.sep}", PACKAGE)


class UsageError(Exception):
    """Bad input: a name that does not exist, or an object of the wrong kind."""


def step_and_inputs(step_name: str, args_name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step for one device, and its abstract arguments."""
    step = named_object(step_name)
    if isinstance(step, AutoPartitioned):
        step = step.plain
    make = named_object(args_name)
    for name, given in ((step_name, step), (args_name, make)):
        if not callable(given):
            raise UsageError(
                f"{step_name} and {args_name} must both be functions: {name} is {shown(given)}"
            )
    try:
        inputs = jax.eval_shape(make)
    except Exception as error:  # the user's own code
        raise UsageError(f"--args: {args_name}() failed: {told(error)}") from error
    if not isinstance(inputs, tuple | list):
        raise UsageError(
            f"{args_name}() returns {type(inputs).__name__}; return the step's arguments as a tuple"
        )
    return step, tuple(inputs)


def told(error: Exception) -> str:
    """Text of an error in the user's code, with the innermost line outside this package and jax."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if not any(other in f.filename for other in _OTHERS)]
    where = f" ({user_frames[-1].filename}:{user_frames[-1].lineno})" if user_frames else ""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}{where}"


def named_object(name: str) -> Any:
    """Imports the object named ``module:attribute``.

    Raises:
      UsageError: a name in the path does not exist; named in the message.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise UsageError(f"{name!r} names no function; write it as package.module:function")
    if module.endswith(".py") or not all(map(str.isidentifier, module.split("."))):
        file = module.removesuffix(".py").strip("./").replace(os.sep, ".")
        hint = f"; did you mean {file}:{attribute}?" if module.endswith(".py") else ""
        raise UsageError(f"{module!r} names no module; write it as package.module:function{hint}")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{module!r} cannot be imported from {os.getcwd()}: {error}") from error
    except Exception as error:  # the user's own code
        raise UsageError(f"importing {module!r} failed: {told(error)}") from error
    for identifier in attribute.split("."):
        if not hasattr(found, identifier):
            own = (n for n, x in vars(found).items() if getattr(x, "__module__", "") == module)
            names = [n for n in own if not n.startswith("_")]
            near = did_you_mean(identifier, names)
            has = f"; it has {', '.join(names[:8])}" if names else ""
            raise UsageError(f"{module} has no {attribute!r}{has}{near}")
        found = getattr(found, identifier)
    return found
