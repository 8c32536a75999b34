"""Custom models: any object with `init` and `apply`, checked before anything is compiled."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError, brief, explained
from jaxrl.core.fields import only
from jaxrl.core.program_spaces import num_chosen
from jaxrl.core.spaces import Space, is_tree, tree_of
from jaxrl.core.trust import load, parse_name
from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import MODEL, carried, has_memory, is_triple
from jaxrl.ops.distributions import Distribution, from_logits, num_logits

ALLOWED = (
    "a flax module, an object with init(key, obs) and apply(params, obs), a pair (init, apply), "
    "a function of (observation_space, action_space) that gives one of these, or module:Name"
)


def custom_model(
    setting: Any, observation_space: Space, action_space: Space, kind: str = "gaussian"
) -> "Custom":
    """The model for the setting `model`, checked against the spaces.

    Args:
        setting: see `ALLOWED`. A model with memory also has `initial_carry(batch_shape)`, which may
            be the third function of a tuple, and apply(params, obs, carry) -> (logits or
            distribution, value, carry).
        kind: the distribution over Box actions, if the model returns logits.

    Raises:
        UsageError: no model, or a model that does not fit the spaces, with both shapes.
    """
    with explained(f"model={brief(setting)} cannot be made"):
        resolved = _resolved(setting, observation_space, action_space)
    model = Custom(resolved, observation_space, action_space, kind)
    _check(model)
    return CustomRecurrent(*vars(model).values()) if has_memory(model.inner) else model


@dataclass(frozen=True)
class Custom:
    """A user's model as a `Model`, for any leading axes, with logits made into a distribution."""

    inner: Any
    observation_space: Space
    action_space: Space
    kind: str = "gaussian"

    def __getattr__(self, name: str) -> Any:
        """`loss` and `intrinsic_reward` come from the user's model, if it has them."""
        if name not in ("loss", "intrinsic_reward"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def init(self, key: Key) -> PyTree:
        obs = self.zero_observations(1)
        carry = (self.inner.initial_carry((1,)),) if has_memory(self.inner) else ()
        return self.inner.init(*_as_many(self.inner.init, key, obs, *carry))

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        return self._apply_flat(params, obs)[:2]

    def zero_observations(self, size: int) -> PyTree:
        """A batch of `size` observations that are zero."""
        zeros = lambda space: jnp.zeros((size, *space.shape), space.dtype)
        return jax.tree.map(zeros, tree_of(self.observation_space))

    def _apply_flat(self, params: PyTree, obs: PyTree, *carry: PyTree) -> tuple:
        """(distribution, value), and the new carry if one is given, [...]."""
        part, leaf = jax.tree.leaves(tree_of(self.observation_space))[0], jax.tree.leaves(obs)[0]
        batch_shape = leaf.shape[: leaf.ndim - len(part.shape)]
        flatten = lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch_shape) :])
        flat = jax.tree.map(flatten, (obs, *carry))
        result = self._converted(1, *self.inner.apply(params, *flat))
        return jax.tree.map(lambda leaf: leaf.reshape(*batch_shape, *leaf.shape[1:]), result)

    def _converted(self, num_axes: int, output: Any, value: jax.Array, *after: PyTree) -> tuple:
        """The model's outputs, with a distribution for logits and values of `num_axes` axes."""
        if isinstance(output, jax.Array):
            output = from_logits(self.action_space, output, self.kind)
        return output, value[..., 0] if value.ndim > num_axes else value, *after

    @property
    def name(self) -> str:
        return type(self.inner).__name__


@dataclass(frozen=True)
class CustomRecurrent(Custom):
    """A user's model with memory."""

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        return self.inner.initial_carry(batch_shape)

    def apply(
        self, params: PyTree, obs: PyTree, carry: PyTree
    ) -> tuple[Distribution, jax.Array, PyTree]:
        return self._apply_flat(params, obs, carry)

    def apply_sequence(
        self, params: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array
    ) -> tuple[Distribution, jax.Array, PyTree]:
        if hasattr(self.inner, "apply_sequence"):
            return self._converted(2, *self.inner.apply_sequence(params, obs, carry, begins))
        fresh = self.initial_carry(begins.shape[1:])

        def step(carry, inputs):
            obs, begins = inputs
            distribution, value, carry = self.apply(params, obs, carried(begins, fresh, carry))
            return carry, (distribution, value)

        carry, outputs = jax.lax.scan(step, carry, (obs, begins))
        return *outputs, carry


@functools.cache  # equal spaces give the same model, so that equal policies are stacked
def _resolved(setting: Any, observation_space: Space, action_space: Space) -> Any:
    """The object with `init` and `apply`."""
    if isinstance(setting, str):
        if (named := parse_name(setting)) is None:
            raise UsageError(f"model={brief(setting)}: allowed are {ALLOWED}")
        found = load(MODEL, named)
        if named.arguments and not callable(found):
            raise UsageError(f"model={setting!r} is an object already, which takes no arguments")
        if named.arguments:
            found = functools.partial(found, **named.arguments)
        return _resolved(found, observation_space, action_space)
    if is_triple(setting):
        return Functions(*setting)
    if not isinstance(setting, type) and hasattr(setting, "init") and hasattr(setting, "apply"):
        return setting
    if not callable(setting):
        raise UsageError(f"model={brief(setting)}: allowed are {ALLOWED}")
    made = _made(setting, {"observation_space": observation_space, "action_space": action_space})
    if made is setting or isinstance(made, str):
        raise UsageError(f"model={brief(setting)} gives {brief(made)}: allowed are {ALLOWED}")
    return _resolved(made, observation_space, action_space)


class Functions(SimpleNamespace):
    """A model from functions; the same functions are the same model."""

    def __init__(self, init: Callable, apply: Callable, initial_carry: Callable | None = None):
        super().__init__(init=init, apply=apply)
        if initial_carry:
            self.initial_carry = initial_carry

    def __hash__(self):
        return hash(tuple(vars(self).items()))


def _made(factory: Callable, spaces: dict[str, Space]) -> Any:
    """The result of a class or function, called with the spaces that it names.

    A function that names none is called with both, in order.
    """
    try:
        takes = inspect.signature(factory).parameters
    except ValueError:  # a built-in
        raise UsageError(f"model={brief(factory)}: allowed are {ALLOWED}") from None
    named = only(spaces, takes)
    is_class = isinstance(getattr(factory, "func", factory), type)  # `func`: of a partial
    arguments = () if named or is_class else tuple(spaces.values())
    try:
        inspect.signature(factory).bind(*arguments, **named)
    except TypeError as error:
        name = getattr(factory, "__qualname__", factory)
        hint = "it may take observation_space and action_space"
        raise UsageError(f"model {name}: {error}; {hint}") from None
    return factory(*arguments, **named)


def _as_many(function: Callable, *arguments: Any) -> tuple:
    """The first arguments, as many as `function` takes."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return arguments
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return arguments[: sum(kind in places for kind in kinds)]


@functools.lru_cache(maxsize=16)  # a run's plan makes its networks several times
def _check(model: Custom) -> None:
    """Refuses a model that does not fit the spaces."""
    _check_parameters(model)
    _check_outputs(model)


def _check_parameters(model: Custom) -> None:
    params = _traced(model, lambda: model.init(jax.random.key(0)))
    kinds = set(params) - {"params"} if isinstance(params, dict) and "params" in params else set()
    if kinds:
        raise UsageError(
            f"model {model.name} has {', '.join(sorted(kinds))} beside its params: "
            "what is no parameter is not trained and has no place in a pure function"
        )
    for path, leaf in jax.tree.leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            what = f"model {model.name}: parameter {jax.tree_util.keystr(path)}"
            raise UsageError(f"{what} is {leaf.dtype}; only floating numbers are learned")


def _check_outputs(model: Custom, size: int = 3) -> None:
    """Traces a batch of `size` observations through the model."""
    inner = model.inner
    carry = (_first_carry(model, size),) if has_memory(inner) else ()
    expected = f"(logits or distribution, value{', carry' if carry else ''})"
    found = {}

    def apply():
        first = (inner.initial_carry((size,)),) if carry else ()
        outputs = inner.apply(model.init(jax.random.key(0)), model.zero_observations(size), *first)
        if not isinstance(outputs, tuple) or len(outputs) != 2 + len(carry):
            raise UsageError(f"model {model.name} must return {expected}, not {_form(outputs)}")
        output, value, *after = outputs
        if isinstance(output, jax.Array):
            shape = (size, num_logits(model.action_space, model.kind))
            _check_shape(model, f"logits over {model.action_space}", output.shape, shape)
        else:
            found["action"] = output.mode()
        if value.shape != (size, 1):
            _check_shape(model, "values", value.shape, (size,))
        return outputs, after

    _, after = _traced(model, apply)
    if "action" in found:
        space = model.action_space
        shape = (size, *((num_chosen(space),) if is_tree(space) else space.shape))
        _check_shape(model, f"actions of {model.action_space}", found["action"].shape, shape)
    if carry and jax.tree.map(_form, after[0]) != jax.tree.map(_form, carry[0]):
        form = "the form of initial_carry(batch_shape)"
        raise UsageError(f"model {model.name} must return its carry in {form}")


def _first_carry(model: Custom, size: int) -> PyTree:
    """The shapes of the carry of a batch, each part with an axis for it.

    Nothing is computed: that would fix the number of devices before a training settles it.
    """
    first = lambda: model.inner.initial_carry((size,))
    try:
        carry = jax.eval_shape(first)
        sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(carry)}
    except Exception:  # no arrays, or it holds itself
        carry, sizes = first(), {()}
    if sizes - {(size,)}:
        what = f"model {model.name}: initial_carry(({size},)) must give arrays [{size}, ...]"
        raise UsageError(f"{what}, not {brief(first())}")
    return carry


def _check_shape(model: Custom, what: str, shape: tuple[int, ...], needed: tuple[int, ...]) -> None:
    if shape != needed:
        raise UsageError(
            f"model {model.name}: {what} must have the shape {list(needed)} "
            f"for a batch of {needed[0]}, not {list(shape)}"
        )


def _traced(model: Custom, function: Callable) -> PyTree:
    """The shapes of the function's result; an error in the user's code becomes one line."""
    space = model.observation_space
    with explained(f"model {model.name} does not work on observations of {space}"):
        return jax.eval_shape(function)


def _form(value: Any) -> str:
    """Shapes and types as a short text."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_form, value))})"
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
