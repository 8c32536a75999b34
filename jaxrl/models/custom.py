"""The user's own models: whatever has `init` and `apply`, taken for what it is and checked before anything compiles."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.spaces import Space, tree_of
from jaxrl.core.trust import Kind, load, parse_name
from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import carried, has_memory
from jaxrl.ops.distributions import Distribution, from_logits, num_logits

ALLOWED = (
    "a flax module, an object with init(key, obs) and apply(params, obs), a pair (init, apply), "
    "a function of (observation_space, action_space) that gives one of these, or module:Name"
)


def _is_model(found: Any) -> bool:
    """A class or an object with `init` and `apply`, functions of these, or a function of the spaces."""
    if isinstance(found, FunctionType):
        takes = inspect.signature(found).parameters.values()
        required = [
            parameter for parameter in takes if parameter.default is inspect.Parameter.empty
        ]
        required = [
            parameter for parameter in required if not parameter.kind.name.startswith("VAR_")
        ]
        return bool(SPACES & {parameter.name for parameter in takes}) or len(required) == 2
    if isinstance(found, tuple):
        return _is_triple(found)
    return callable(getattr(found, "init", None)) and callable(getattr(found, "apply", None))


def _is_triple(found: Any) -> bool:
    return isinstance(found, tuple) and 2 <= len(found) <= 3 and all(map(callable, found))


SPACES = {"observation_space", "action_space"}
MODEL = Kind(
    "model",
    "jaxrl.models",
    "a flax module, a class or an object with init(key, obs) and apply(params, obs), a pair (init, apply), "
    "or a function of (observation_space, action_space)",
    _is_model,
)


def custom_model(
    given: Any, observation_space: Space, action_space: Space, kind: str = "gaussian"
) -> "Custom":
    """The model that a setting means, checked against the spaces.

    Args:
        given: `ALLOWED`; with memory also `initial_carry(batch_shape)`, and then apply(params, obs,
            carry) -> (logits or distribution, value, carry). A triple of functions may hold it as
            well.
        kind: of distribution over Box actions, where the model gives logits.

    Raises:
        UsageError: nothing of the kind, or a model that does not fit the spaces, with both shapes.
    """
    model = Custom(
        _resolved(given, observation_space, action_space), observation_space, action_space, kind
    )
    for check in (_check_parameters, _check_outputs):
        check(model)
    return CustomRecurrent(*vars(model).values()) if has_memory(model.given) else model


@dataclass(frozen=True)
class Custom:
    """A user's model as the loop takes it: any leading axes are one to the model, and its logits a distribution."""

    given: Any
    observation_space: Space
    action_space: Space
    kind: str = "gaussian"

    def __getattr__(self, name: str) -> Any:
        """`loss` and `intrinsic_reward` are the model's own, if it has them."""
        if name not in ("loss", "intrinsic_reward"):
            raise AttributeError(name)
        return getattr(self.given, name)

    def init(self, key: Key) -> PyTree:
        obs = jax.tree.map(
            lambda space: jnp.zeros((1, *space.shape), space.dtype), tree_of(self.observation_space)
        )
        carry = (self.given.initial_carry((1,)),) if has_memory(self.given) else ()
        return self.given.init(*_as_many(self.given.init, key, obs, *carry))

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        return self._one_batch(params, obs)[:2]

    def _one_batch(self, params: PyTree, obs: PyTree, *carry: PyTree) -> tuple:
        """(distribution, value) and, if it is given one, the carry, [...]."""
        part, leaf = jax.tree.leaves(tree_of(self.observation_space))[0], jax.tree.leaves(obs)[0]
        batch_shape = leaf.shape[: leaf.ndim - len(part.shape)]
        flat = jax.tree.map(
            lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch_shape) :]), (obs, *carry)
        )
        result = self._plain(1, *self.given.apply(params, *flat))
        return jax.tree.map(lambda leaf: leaf.reshape(*batch_shape, *leaf.shape[1:]), result)

    def _plain(self, num_axes: int, output: Any, value: jax.Array, *after: PyTree) -> tuple:
        """What the model gave, of `num_axes` leading axes: a distribution for logits, values without a last axis."""
        distribution = (
            from_logits(self.action_space, output, self.kind)
            if isinstance(output, jax.Array)
            else output
        )
        return distribution, value[..., 0] if value.ndim > num_axes else value, *after

    @property
    def name(self) -> str:
        return type(self.given).__name__


@dataclass(frozen=True)
class CustomRecurrent(Custom):
    """A user's model with memory."""

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        return self.given.initial_carry(batch_shape)

    def apply(
        self, params: PyTree, obs: PyTree, carry: PyTree
    ) -> tuple[Distribution, jax.Array, PyTree]:
        return self._one_batch(params, obs, carry)

    def apply_sequence(
        self, params: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array
    ) -> tuple[Distribution, jax.Array, PyTree]:
        if hasattr(self.given, "apply_sequence"):
            return self._plain(2, *self.given.apply_sequence(params, obs, carry, begins))
        fresh = self.initial_carry(begins.shape[1:])

        def one_step(carry, inputs):
            obs, begins = inputs
            distribution, value, carry = self.apply(params, obs, carried(begins, fresh, carry))
            return carry, (distribution, value)

        carry, outputs = jax.lax.scan(one_step, carry, (obs, begins))
        return *outputs, carry


@functools.cache  # a class or a function gives one model for the same spaces, so that equal policies are stacked
def _resolved(given: Any, observation_space: Space, action_space: Space) -> Any:
    """What has `init` and `apply`."""
    if isinstance(given, str):
        if (named := parse_name(given)) is None:
            raise UsageError(f"model={brief(given)}: allowed are {ALLOWED}")
        found = load(MODEL, named)
        if named.arguments and not callable(found):
            raise UsageError(f"model={given!r} is an object already, which takes no arguments")
        if named.arguments:
            found = functools.partial(found, **named.arguments)
        return _resolved(found, observation_space, action_space)
    if _is_triple(given):
        return Functions(*given)
    if not isinstance(given, type) and hasattr(given, "init") and hasattr(given, "apply"):
        return given
    if not callable(given):
        raise UsageError(f"model={brief(given)}: allowed are {ALLOWED}")
    made = _made(given, {"observation_space": observation_space, "action_space": action_space})
    if made is given or isinstance(made, str):
        raise UsageError(f"model={brief(given)} gives {brief(made)}: allowed are {ALLOWED}")
    return _resolved(made, observation_space, action_space)


class Functions(SimpleNamespace):
    """A model from functions; the same functions are the same model."""

    def __init__(self, init: Callable, apply: Callable, initial_carry: Callable | None = None):
        super().__init__(
            init=init, apply=apply, **({"initial_carry": initial_carry} if initial_carry else {})
        )

    def __hash__(self):
        return hash(tuple(vars(self).items()))


def _made(factory: Callable, spaces: dict[str, Space]) -> Any:
    """What a class or a function gives: called with the spaces that it names, a function else with both in order."""
    try:
        takes = inspect.signature(factory).parameters
    except ValueError:  # a built-in
        raise UsageError(f"model={brief(factory)}: allowed are {ALLOWED}") from None
    named = {name: space for name, space in spaces.items() if name in takes}
    by_name = named or isinstance(
        getattr(factory, "func", factory), type
    )  # `func`: of a class with arguments
    arguments = () if by_name else tuple(spaces.values())
    try:
        inspect.signature(factory).bind(*arguments, **named)
    except TypeError as error:
        name = getattr(factory, "__qualname__", factory)
        raise UsageError(
            f"model {name}: {error}; it may take observation_space and action_space"
        ) from None
    return factory(*arguments, **named)


def _as_many(function: Callable, *arguments: Any) -> tuple:
    """As many of the arguments as it takes."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return arguments
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return arguments[: sum(kind in places for kind in kinds)]


def _check_parameters(model: Custom) -> None:
    params = _traced(model, lambda: model.init(jax.random.key(0)))
    kinds = set(params) - {"params"} if isinstance(params, dict) and "params" in params else set()
    if kinds:
        raise UsageError(
            f"model {model.name} has {', '.join(sorted(kinds))} beside its params: what is no parameter is not trained "
            "and has no place in a pure function"
        )
    for path, leaf in jax.tree.leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            where = jax.tree_util.keystr(path)
            raise UsageError(
                f"model {model.name}: parameter {where} is {leaf.dtype}; only floating numbers are learned"
            )


def _check_outputs(model: Custom, size: int = 3) -> None:
    """Traces a batch of `size` observations through the model."""
    given = model.given
    carry = (given.initial_carry((size,)),) if has_memory(given) else ()
    expected = (
        "(logits or distribution, value, carry)" if carry else "(logits or distribution, value)"
    )
    seen = {}

    def apply():
        spaces = tree_of(model.observation_space)
        obs = jax.tree.map(lambda space: jnp.zeros((size, *space.shape), space.dtype), spaces)
        outputs = given.apply(model.init(jax.random.key(0)), obs, *carry)
        if not isinstance(outputs, tuple) or len(outputs) != 2 + len(carry):
            raise UsageError(f"model {model.name} must return {expected}, not {_form(outputs)}")
        output, value, *after = outputs
        if isinstance(output, jax.Array):
            wanted = (size, num_logits(model.action_space, model.kind))
            _check_shape(model, f"logits over {model.action_space}", output.shape, wanted)
        else:
            seen["action"] = output.mode()
        if value.shape != (size, 1):
            _check_shape(model, "values", value.shape, (size,))
        return outputs, after

    _, after = _traced(model, apply)
    if "action" in seen:
        _check_shape(
            model,
            f"actions of {model.action_space}",
            seen["action"].shape,
            (size, *model.action_space.shape),
        )
    if carry and jax.tree.map(_form, after[0]) != jax.tree.map(
        _form, jax.eval_shape(lambda: carry[0])
    ):
        raise UsageError(
            f"model {model.name} must return its carry in the form of initial_carry(batch_shape)"
        )


def _check_shape(model: Custom, what: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if shape != wanted:
        raise UsageError(
            f"model {model.name}: {what} must have the shape {list(wanted)} for a batch of {wanted[0]}, "
            f"not {list(shape)}"
        )


def _traced(model: Custom, function: Callable) -> PyTree:
    """The shapes of what it gives; what breaks in the user's own code, in one line."""
    try:
        return jax.eval_shape(function)
    except UsageError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        raise UsageError(
            f"model {model.name} does not work on observations of {model.observation_space}: "
            f"{type(error).__name__}: {said[0]:.300}"
        ) from error


def _form(value: Any) -> str:
    """Shapes and types in few words."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_form, value))})"
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
