"""A partitioned function, called like the original."""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import copy
import dataclasses
import os
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import jax

from partir_search.arguments.abstract_values import abstract
from partir_search.arguments.axes import within
from partir_search.calling.callables import (
    CallSplitter,
    Marks,
    are_several,
    copy_names,
    takes_self,
    user_function,
    without_self,
)
from partir_search.calling.check_options import check_options
from partir_search.calling.direct_calls import UNLIKE
from partir_search.calling.executables import Executables, check_lowerable, check_runnable
from partir_search.calling.fast_calls import FastCalls
from partir_search.calling.forms import Adapter, Form, FrontEndCache, InitialState, has_objects
from partir_search.calling.plain_calls import is_plain, plain_calls
from partir_search.calling.traced_calls import TracedCalls
from partir_search.plan.check import Check, compared, concrete
from partir_search.plan.pickling import Unpickled
from partir_search.plan.plan import Plan, spec_of
from partir_search.planning.checks import options as checks
from partir_search.planning.options import Options
from partir_search.planning.trace import Call, ClosesOverTraced
from partir_search.profile.profile import Profile, load_profile
from partir_search.simulator.target.machine import Machine

P = ParamSpec("P")  # arguments of the user's function, and R its result
Q = ParamSpec("Q")  # arguments of a method, and T its object
R = TypeVar("R")
T = TypeVar("T")


class AutoPartitioned(Unpickled, Generic[P, R]):
    """A partitioned function, called like the original.

    The first call of each signature traces, searches, lowers and compiles; plan and executable are
    cached. Under `jax.jit` and in the control flow of `jax.lax`, the partitioned program runs as
    well; under differentiation or batching (`jax.grad`, `jax.vmap`), the plain function runs.
    """

    def __init__(self, fun: Callable[P, R], options: Options, static: Marks, donate: Marks) -> None:
        user = user_function(fun, static, donate)
        copy_names(self, fun)
        self.__name__: str
        self._user, self._options = user, options
        inner, static, donate = user.fun, user.static, user.donate
        self._fun, self._static, self._given = inner, static, user.given
        self._plain: Any = (
            inner
            if isinstance(inner, jax.stages.Wrapped) and not any(donate)
            else jax.jit(
                inner,
                static_argnums=static[0] or None,
                static_argnames=static[1] or None,
                donate_argnums=donate[0] or None,
                donate_argnames=donate[1] or None,
            )
        )
        self._executables = Executables(inner, self._plain, self.__name__, options)
        self._adapter = Adapter(user.inner, self.__name__, options)
        self._traced_calls, self._front_ends = TracedCalls(self.__name__), FrontEndCache()
        self._methods: dict[int, tuple[Any, AutoPartitioned[..., Any]]] = {}
        self._splitter, self._fast = CallSplitter(inner, static), FastCalls()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> AutoPartitioned[P, R]: ...
    @overload
    def __get__(
        self: AutoPartitioned[Concatenate[T, Q], R], instance: T, owner: type | None = None
    ) -> AutoPartitioned[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> AutoPartitioned[..., Any]:
        """The method bound to an object.

        The object is an argument if it is a pytree or static (`static_argnums=0`); otherwise the
        method closes over the object.
        """
        if instance is None:
            return self
        if takes_self(self._fun, instance, self._static):
            bound = copy.copy(self)
            bound._given = (*self._given, instance)
            return bound
        if id(instance) not in self._methods:
            method = types.MethodType(self._fun, instance)
            marks = (without_self(self._fun, m) for m in (self._static, self._user.donate))
            step = AutoPartitioned(method, self._options, *marks)
            step._user = dataclasses.replace(step._user, fronts=self._user.fronts)
            self._methods[id(instance)] = instance, step
        return self._methods[id(instance)][1]

    def with_profile(
        self, profile: Profile | str | os.PathLike[str], schedule: Plan | None = None
    ) -> AutoPartitioned[P, R]:
        """The step with plans priced by a profile, as by ``auto_partition(..., profile=)``.

        Args:
          profile: measured figures of the machine, or their file.
          schedule: a plan to replay; default: the step's own schedule.
        """
        machine = self._options.machine.with_profile(load_profile(profile))
        other, name = copy.copy(self), self.__name__
        other._options = dataclasses.replace(
            self._options, machine=machine, schedule=schedule or self._options.schedule
        )
        other._executables = Executables(self._fun, self._plain, name, other._options)
        other._adapter = Adapter(self._user.inner, name, other._options)
        other._traced_calls, other._fast, other._methods = TracedCalls(name), FastCalls(), {}
        return other

    @property
    def machine(self) -> Machine:
        """Figures of the machine that plans are made for."""
        return self._options.machine

    @property
    def _entries(self) -> Mapping[Hashable, Any]:
        """Executables by call signature; their number is that of `jax.jit`'s `_cache_size()`."""
        return self._executables.entries

    @property
    def static(self) -> Marks:
        """Positions and names of static arguments."""
        return self._static

    @property
    def plain(self) -> Any:
        """The function for one device, jitted."""
        return self._plain

    # Stages ------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not (kwargs or self._user.fronts or is_plain()):
            out = self._fast.alone((*self._given, *args))
            if out is not UNLIKE:
                return out
        call = self._splitter((*self._given, *args), kwargs)
        may_be_fast = not (self._user.fronts or is_plain() or has_objects(call))
        if may_be_fast and (run := self._fast.find(call, self._options.here)):
            return run()
        form = self._form(args, kwargs, call)
        leaves = form.call.leaves()
        traced = any(isinstance(x, jax.core.Tracer) for x in leaves)
        if is_plain() or (traced and self._traced_calls.plain(leaves)):
            return form.direct()
        mesh = check_runnable(self.__name__, self._options.mesh, leaves)
        if traced:
            return self._traced_calls.call(form, leaves, mesh)
        try:
            entry = form.executables.entry(form.call, form.args, form.kwargs)
        except ClosesOverTraced:
            return self._traced_calls.closing(form)
        out = entry.run(form.settle(leaves, entry.shardings))
        if form.call is call:  # no front end has changed the arguments
            self._fast.add(call, self._options.here, entry)
        return form.finish(out)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Plans a call without compiling; arguments may be arrays or `jax.ShapeDtypeStruct`s."""
        form = self._form(args, kwargs)
        return form.executables.planned(form.call, form.args, form.kwargs)[0]

    def free_plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Plans a call by a search independent of earlier plans.

        By default, plans of further shapes preserve the train state layouts of the first plan
        (`plan.basis` compares both costs). The returned plan is not cached: run it with
        `schedule=`.
        """
        form = self._form(args, kwargs)
        return form.executables.free_plan(form.call, form.args, form.kwargs)

    def best_so_far(self, *args: Any, **kwargs: Any) -> Plan:
        """Plan of the best strategy of a search that ctrl-C has stopped, for the same arguments.

        The plan is complete and takes the seconds of a planning without its searches. The plan is
        not the step's own: save the plan, or pass it as `schedule=`; the step's next call searches
        again.

        Raises:
          ValueError: no search for these arguments was stopped.
        """
        form = self._form(args, kwargs)
        return form.executables.best_so_far(form.call, form.args, form.kwargs)

    def init(self, init_fn: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        """Computes the step's first argument (the train state) with the plan's shardings.

        `init_fn` is compiled with the shardings: no device ever holds more than its shard. With
        `skewed_state=True` or `staged_state=True`, the result is in the order of the step.

        Args:
          init_fn: function that returns the state, ``lambda: create_state(jax.random.key(0))``, or
            a tuple of the step's first arguments (a model and its optimizer).
          *args: the step's further arguments, arrays or ShapeDtypeStructs.
          **kwargs: keyword arguments of the step.
        """
        checks.check_maker(init_fn)
        initial = InitialState(init_fn)
        several = are_several(self._fun, self._given, initial.shapes, args, kwargs)
        first = initial.shapes if several else (initial.shapes,)
        plan = self.plan(*first, *args, **kwargs)
        given = len(self._splitter(self._given, {}).args)
        wanted = jax.tree.leaves(plan.in_shardings[0][given : given + len(first)])
        with within(plan.mesh):
            found = initial.arrays(wanted)
        if plan.reorders_state:
            found = initial.changed(found, plan.skew, several)
        return initial.objects(found)

    def check(self, *args: Any, plan: Plan | None = None, **kwargs: Any) -> Check:
        """Runs the partitioned and the plain function on CPU devices and compares the results.

        Values that consist of rounding error differ completely, for example Adam's update for a
        gradient that is zero up to rounding (of a key's bias). Compare with an optimizer without
        division.

        Args:
          *args: arrays, or ShapeDtypeStructs to be filled with random numbers; shapes may be
            smaller than the plan's.
          plan: the plan to check; default: the plan of these arguments.
          **kwargs: keyword arguments of the step.
        """
        saved = spec_of(self.plan(*args, **kwargs) if plan is None else plan)
        form, name = self._form(args, kwargs), self.__name__
        options = check_options(self._options, saved)
        executables = Executables(form.fun, form.plain, name, options)

        def plain(*dynamic: Any, **named: Any) -> Any:
            given, every = form.call.filled(form.args, form.kwargs, dynamic, named)
            with plain_calls():
                return form.plain(*given, **every)

        def partitioned(*dynamic: Any, **named: Any) -> Any:
            given, every = form.call.filled(form.args, form.kwargs, dynamic, named)
            call = dataclasses.replace(form.call, args=dynamic, kwargs=named)
            entry = executables.entry(call, given, every)

            def step(*dynamic: Any, **named: Any) -> Any:
                return entry.run(jax.tree.leaves((dynamic, named)))

            if not entry.plan.module.staged.groups:
                return step(*dynamic, **named)
            return entry.plan.staged_call(step, dynamic, named)

        return compared(partitioned, plain, concrete(form.call.args), concrete(form.call.kwargs))

    def known_plans(self, *args: Any, **kwargs: Any) -> dict[str, Plan]:
        """Plans of the known strategies (data, tensor and sequence parallelism, ZeRO), by name.

        A search starts from these strategies. Run one with ``schedule=plan``.
        """
        form = self._form(args, kwargs)
        return form.executables.known_plans(form.call, form.args, form.kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Traced` of the partitioned program, with static arguments bound.

        If the function closes over large arrays, a list of the arrays precedes the arguments.
        """
        mesh = check_lowerable(self.__name__, self._options.here)
        form = self._form(args, kwargs)
        entry = form.executables.entry(form.call, form.args, form.kwargs)
        new_args, new_kwargs = entry.structs(form.call)
        with within(mesh):
            return entry.jitted.trace(*entry.lifted, *new_args, **new_kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Lowered` of the partitioned program; `.compile()` returns the executable."""
        with within(self._options.here):
            return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results, as `jax.jit(f).eval_shape`."""
        form = self._form(args, kwargs)
        form.call.key()  # raises for leaves other than arrays
        shapes, named = jax.tree.map(abstract, (form.call.args, form.call.kwargs))
        given, every = form.call.filled(form.args, form.kwargs, shapes, named)
        return form.finish(form.plain.eval_shape(*given, **every), fresh=True)

    def clear_cache(self) -> None:
        """Removes all plans, traces and executables."""
        self._plain.clear_cache()
        self._executables.clear()
        self._adapter.clear()
        self._fast.clear()
        self._methods.clear()

    # Inside ------------------------------------------------------------------------------------

    def _form(self, args: Sequence[Any], kwargs: dict[str, Any], call: Call | None = None) -> Form:
        args = (*self._given, *args)
        call = call or self._splitter(args, kwargs)
        fronts = self._user.fronts or self._front_ends.fronts(call)
        if fronts:
            return self._adapter.form(fronts, call, args, kwargs, self._user.donated)
        plain = self._plain
        return Form(
            *(self._fun, plain, self._executables, self._static, call, args, kwargs),
            lambda: plain(*args, **kwargs),
        )
