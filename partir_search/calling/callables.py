"""Normal form of the user's function: methods, callable modules, a library's `jit`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from partir_search.frontends.protocol import FrontEnd, Unwrapped
from partir_search.frontends.registry import claimed, unwrapped
from partir_search.ir.argument_paths import parameter_names
from partir_search.planning.trace import Call, split_call

Marks = tuple[tuple[int, ...], tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class UserFunction:
    """A function with its bound objects, static arguments and donated arguments.

    Attributes:
      fun: the function.
      given: objects bound to the function, passed as its first arguments.
      static, donate: positions (counting `given`) and names of arguments.
      fronts: front ends applied in every call.
      jit_options: options of a library's `jit` around the function.
    """

    fun: Callable[..., Any]
    given: tuple[Any, ...]
    static: Marks
    donate: Marks
    fronts: tuple[FrontEnd, ...] = ()
    jit_options: Unwrapped | None = None

    @property
    def inner(self) -> Callable[..., Any]:
        """The function under `jax.jit`, which returns the caller's objects unchanged."""
        wrapped = isinstance(self.fun, jax.stages.Wrapped)
        return getattr(self.fun, "__wrapped__", self.fun) if wrapped else self.fun

    def donated(
        self, names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> frozenset[str]:
        """Names of the donated arguments of a call.

        Args:
          names: names of all dynamic arguments, positional ones first.
          args, kwargs: all arguments.
        """
        every = parameter_names(self.inner, len(args))
        found = {every[i] for i in self.donate[0] if -len(every) <= i < len(every)}
        found |= set(self.donate[1])
        if self.jit_options is not None:
            found |= set(names[:1]) if self.jit_options.donate_first else set()
            found |= set(names[1:]) if self.jit_options.donate_rest else set()
            if self.jit_options.donated_by is not None:
                positions, by_name = self.jit_options.donated_by(args, kwargs)
                found |= {names[i] for i in positions} | by_name
        return frozenset(found)


def user_function(fun: Callable[..., Any], static: Marks, donate: Marks) -> UserFunction:
    """Converts a callable to a function whose objects are arguments.

    A method of an object claimed by a front end, or a claimed object with `__call__`, becomes a
    function of the object.
    """
    fronts: tuple[FrontEnd, ...] = ()
    jit_options = None
    found = unwrapped(fun)
    if found is not None:
        front, jit_options = found
        fun, fronts = jit_options.fun, (front,) if jit_options.everything else ()
        static = (tuple(dict.fromkeys((*static[0], *jit_options.static_argnums))), static[1])
    bound = getattr(fun, "__self__", None)
    unbound = getattr(fun, "__func__", None)
    if bound is not None and unbound is not None and claimed(bound):
        given, fun = bound, unbound
    elif claimed(fun):
        given, fun = fun, type(fun).__call__
    else:
        static, donate = _completed(fun, static), _completed(fun, donate)
        return UserFunction(fun, (), static, donate, fronts, jit_options)
    static, donate = (_completed(fun, _shifted(marks, 1)) for marks in (static, donate))
    return UserFunction(fun, (given,), static, donate, fronts, jit_options)


def _completed(fun: Callable[..., Any], marks: Marks) -> Marks:
    """Marks by position and by name of each marked argument passable in both ways."""
    try:
        parameters = enumerate(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):  # no signature
        return marks
    both = [(i, p.name) for i, p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    marked = [(i, name) for i, name in both if i in marks[0] or name in marks[1]]
    positions, names = zip(*marked, strict=True) if marked else ((), ())
    return tuple(dict.fromkeys((*marks[0], *positions))), tuple(dict.fromkeys((*marks[1], *names)))


class CallSplitter:
    """Separates static from dynamic arguments of a function's calls; reads the signature once."""

    def __init__(self, fun: Callable[..., Any], static: Marks) -> None:
        self._fun, self._static = fun, static
        self._names: dict[int, list[str]] = {}

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        """Dynamic arguments of a call, and the values of static ones."""
        names = self._names.get(len(args))
        if names is None:
            names = self._names[len(args)] = parameter_names(self._fun, len(args))
        return split_call(self._fun, args, kwargs, *self._static, names)


def without_self(fun: Callable[..., Any], marks: Marks) -> Marks:
    """Marks of the arguments of a bound method, from the marks of `fun`."""
    own = parameter_names(fun, 1)
    names = tuple(n for n in marks[1] if n not in own)
    return _shifted((tuple(i for i in marks[0] if i), names), -1)


def takes_self(fun: Callable[..., Any], instance: Any, static: Marks) -> bool:
    """True if a method's object can be an argument: a pytree, or marked static by the user.

    The method closes over any further object.
    """
    named = parameter_names(fun, 1)
    if 0 in static[0] or named[0] in static[1]:
        return True
    leaf = jax.tree_util.treedef_is_leaf(jax.tree.structure(instance, is_leaf=_whole))
    return bool(claimed(instance)) or not leaf or hasattr(instance, "dtype")


def _whole(x: Any) -> bool:
    return bool(claimed(x))


def _shifted(marks: Marks, by: int) -> Marks:
    return tuple(i + by if i >= 0 else i for i in marks[0]), marks[1]


def copy_names(target: Any, fun: Callable[..., Any]) -> None:
    """Copies name, qualified name, module and docstring of `fun` to `target`, but no attributes."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(fun, name, None)
        if value is not None or name == "__doc__":
            setattr(target, name, value)
    target.__wrapped__ = fun
    target.__name__ = getattr(fun, "__name__", "step")
    if inspect.ismethod(fun):
        target.__name__ = fun.__func__.__name__


def are_several(
    fun: Callable[..., Any],
    given: Sequence[Any],
    state: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> bool:
    """True if the tuple `state` stands for several leading arguments of `fun`, not for one."""
    if type(state) is not tuple or _binds(fun, (*given, state, *args), kwargs):
        return False
    return _binds(fun, (*given, *state, *args), kwargs)


def _binds(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(fun).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # no signature
        return True
    return True
