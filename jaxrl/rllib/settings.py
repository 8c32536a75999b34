"""Rules by which RLlib's settings of training and networks are read: one key, or a few together.

Each rule is a function from the values that it reads, by path, to rows. A key without a rule is
copied, or stands in the table `core/names/rllib.toml`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from flax import linen as nn

from jaxrl.algorithms.rllib_values import OF_ADAM
from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import as_count, count, without
from jaxrl.rllib.atari import OF_ATARI, atari, clipping
from jaxrl.rllib.connectors import TO_MODULE, filtering
from jaxrl.rllib.context import AGENT_STEPS, Context
from jaxrl.rllib.own_code import CALLBACKS, callbacks, curriculum, exploration
from jaxrl.rllib.rows import Row, changes, first, given_of, harmless, taken

Values = Mapping[str, Any]


class Rule(NamedTuple):
    """The keys that are read together, and the function that reads those that are there."""

    keys: tuple[str, ...]
    read: Callable[[Values, Context], Iterator[Row]]
    always: bool = False  # whether RLlib's defaults mean something, too


NUM_RUNNERS = ("num_env_runners", "num_rollout_workers", "num_workers")
ENVS_EACH = ("num_envs_per_env_runner", "num_envs_per_worker")
FRAGMENT = ("rollout_fragment_length", "sample_batch_size")
BATCH_EACH = ("train_batch_size_per_learner", "_train_batch_size_per_learner")
LEARNERS = ("num_learners", "num_learner_workers")
MINIBATCH = (
    *("minibatch_size", "sgd_minibatch_size", "mini_batch_size", "minibatch_size_per_learner"),
    "mini_batch_size_per_learner",
)
PER_ITERATION = (
    *("timesteps_per_iteration", "min_sample_timesteps_per_iteration"),
    "min_train_timesteps_per_iteration",
)
CUSTOM_MODEL = ("model/custom_model", "model/custom_model_config")
SIZES = (*NUM_RUNNERS, *ENVS_EACH, *FRAGMENT, "train_batch_size", *BATCH_EACH)


def sizes(values: Values, context: Context) -> Iterator[Row]:
    """The number of environments that RLlib's workers step, and rollouts that fill the same batch.

    RLlib samples fragments until it has the batch, so a fragment that does not divide it gives a
    larger one. It counts both in steps of the environment, or of all its agents together.
    """
    modes, values = given_of(values, "batch_mode"), _counts(without(values, ("batch_mode",)))
    learners = max(1, first(values, *LEARNERS, default=0))
    per_learner = first(values, *BATCH_EACH)
    batch = (
        first(values, "train_batch_size", default=4000)
        if per_learner is None
        else per_learner * learners
    )
    num_envs = max(1, first(values, *NUM_RUNNERS, default=2)) * first(values, *ENVS_EACH, default=1)
    fragment, steps_each = first(values, *FRAGMENT, default="auto"), context.steps_each
    steps = 1 if fragment == "auto" else math.ceil(fragment / steps_each)
    length = steps * math.ceil(batch / (num_envs * steps * steps_each))
    why = "" if num_envs * length == batch else f"train_batch_size={num_envs * length}"
    read = given_of(values, *SIZES, *LEARNERS)
    yield taken(read, why, num_envs=num_envs, rollout_length=length)
    rows = first(values, *MINIBATCH)
    if rows is not None:
        yield taken(given_of(values, *MINIBATCH), minibatch_size=rows * learners)
    for key, least in given_of(values, *PER_ITERATION).items():
        yield _iteration(key, least, num_envs * length * steps_each)
    for mode in modes.values():
        yield _batch_mode(mode, _length_beside(num_envs, length, context), context.time_limit)


def _length_beside(num_envs: int, length: int, context: Context) -> int:
    """The length of a rollout where some of the sizes are given beside the configuration."""
    sizes = {"num_envs": num_envs, "train_batch_size": num_envs * length}
    for name, value in context.settings_beside.items():
        if isinstance(number := as_count(value), int) and number > 0:
            sizes[name] = number
    return sizes.get("rollout_length", sizes["train_batch_size"] // sizes["num_envs"])


def _batch_mode(mode: Any, length: int, time_limit: int | None) -> Row:
    """The row of `batch_mode`: may rollouts cut episodes?

    A rollout with room for the longest episode cuts only the last that each environment plays, and
    learning bootstraps there. RLlib plays that one to its end.
    """
    if mode in (None, "truncate_episodes"):
        return harmless({"batch_mode": mode}, "rollouts cut episodes, and bootstrap there")
    if mode == "complete_episodes" and time_limit is not None and length >= time_limit:
        why = f"rollouts of {length} steps hold whole episodes, and cut only the last of each"
        return taken({"batch_mode": mode}, why)
    if mode != "complete_episodes":
        why = "it is truncate_episodes or complete_episodes"
    elif time_limit is None:
        why = "rollouts have a fixed length and cut episodes, which may be of any length here"
    else:
        cut = f"rollouts of {length} steps cut episodes of up to {time_limit}"
        why = f"{cut}: take fewer environments"
    return changes({"batch_mode": mode}, why)


def _iteration(key: str, least: int | None, steps: int) -> Row:
    """The steps that RLlib waits for before an iteration ends, which is one batch here."""
    if (least or 0) <= steps:
        return harmless({key: least}, "an iteration is one batch, which has as many")
    why = (
        f"an iteration is one batch of {steps} steps here, and of at least {least} in RLlib: what "
        "counts iterations (stop, evaluation_interval, checkpoint_frequency) comes earlier"
    )
    return changes({key: least}, why)


def _counts(values: Values) -> Values:
    """The same as whole numbers, such as 1000 for 1e3."""
    whole = {key: as_count(value) for key, value in values.items()}
    for key, value in whole.items():
        if not (key in FRAGMENT and value == "auto"):
            may_be_0 = (*NUM_RUNNERS, *LEARNERS, *PER_ITERATION)
            count(0 if key in may_be_0 else 1, optional=True)(key, value)
    return whole


def schedule_of(name: str, *schedules: str) -> Rule:
    """A number, or the schedule that takes its place where it is set."""

    def read(values, context):
        value = first(values, *schedules, name)
        if value is not None:
            yield taken(values, **{name: value})

    return Rule((name, *schedules), read)


def advantages(values: Values, context: Context) -> Iterator[Row]:
    """The estimator of advantages; RLlib's sum of rewards without `use_gae` is lambda 1.

    Without a critic RLlib's documents, and its old stack, have sums of rewards as well. Its new
    stack subtracts the values of a network that nothing trains.
    """
    if (use_critic := values.get("use_critic", True)) is not True:
        yield taken(values, "advantages are the sums of rewards", use_critic=use_critic)
        return
    values = dict(values)
    if values.pop("use_critic", None):
        yield taken({"use_critic": True}, use_critic=True)
    if not values:
        return
    if values.get("use_gae") is False:
        yield taken(values, "the sum of rewards to the end", lambda_=1.0)
    elif (value := first(values, "lambda_", "lambda")) is not None:
        yield taken(values, lambda_=value)
    else:
        yield harmless(values, "advantages are always generalised advantage estimation")


ATARI = ((16, 8, 4), (32, 4, 2))
CONVOLUTIONS = {  # RLlib's where none are given, by the size of the image, and a layer above them
    10: (((16, 5, 2), (32, 5, 2)), ()),
    42: (((16, 4, 2), (32, 4, 2)), (256,)),
    64: (((16, 4, 2), (32, 4, 2), (64, 4, 2), (128, 4, 2)), ()),
    84: (ATARI, (256,)),
    96: (ATARI, (256,)),
}
LAYERS = (
    *("fcnet_hiddens", "fcnet_activation", "conv_filters", "post_fcnet_hiddens"),
    *("post_fcnet_activation", "head_fcnet_hiddens", "head_fcnet_activation"),
)
INITIALIZERS = {  # the setting here: RLlib's names of it, and of its arguments
    "fcnet_kernel_initializer": (
        (
            *("model/fcnet_kernel_initializer", "model/fcnet_weights_initializer"),
            "model/fcnet_initializer",
        ),
        ("model/fcnet_kernel_initializer_kwargs", "model/fcnet_weights_initializer_config"),
    ),
    "fcnet_bias_initializer": (
        ("model/fcnet_bias_initializer",),
        ("model/fcnet_bias_initializer_kwargs", "model/fcnet_bias_initializer_config"),
    ),
}
OF_INITIALIZERS = tuple(key for both in INITIALIZERS.values() for keys in both for key in keys)
MEMORY = ("use_lstm", "use_attention")
SHARED = ("vf_share_layers", "model/vf_share_layers")  # old versions copy the first to the model


def network(values: Values, context: Context) -> Iterator[Row]:
    """Layers, convolutions, memory, and whether policy and value share them."""
    model = {name: values[f"model/{name}"] for name in LAYERS if f"model/{name}" in values}
    memory = [name for name in MEMORY if values.get(f"model/{name}")]
    for name in MEMORY:
        if f"model/{name}" in values:
            yield taken({f"model/{name}": name in memory}, **{name: name in memory})
    shares = bool(first(values, *SHARED, default=False))
    read = given_of(values, *SHARED)
    if memory and not context.new_stack:
        yield taken(read, f"{memory[0]}: RLlib's wrapper shares it", vf_share_layers=True)
    elif read:
        yield taken(read, vf_share_layers=shares)
    yield from _layers(model, context)
    yield from _initializers(values, context)


def _layers(model: Values, context: Context) -> Iterator[Row]:
    """The layers' sizes and activation.

    RLlib puts `post_fcnet_hiddens` (or, in RLModules, `head_fcnet_hiddens`) above convolutions in
    place of `fcnet_hiddens`, and above these without any. Up to RLlib 2.37 RLModules call their
    heads' layers `post_fcnet_hiddens`, too.
    """
    shape = context.image_shape
    post, head = (
        _widths(name, model.get(name) or ())
        for name in ("post_fcnet_hiddens", "head_fcnet_hiddens")
    )
    above_by = "head_fcnet_activation" if head else "post_fcnet_activation"
    activation_above = model.get(above_by, "relu")
    if context.new_stack:
        post, head = (), head or post
    above = head or post
    filters = model.get("conv_filters") if shape else None
    why, flat = "every convolution pads the image; RLlib's last one does not", ()
    if shape and not filters and (size := _square(shape)) in CONVOLUTIONS:
        filters, flat = CONVOLUTIONS[size]
        if flat:
            why = f"RLlib's for {size} x {size}, whose last one, of all that is left, is a layer"
            activation_above = "relu"
    read = {f"model/{name}": value for name, value in model.items()}
    hiddens, activation = model.get("fcnet_hiddens"), model.get("fcnet_activation")
    heads = {"head_fcnet_hiddens": head} if head else {}
    if filters:
        layers = {"conv_filters": filters, "fcnet_hiddens": (*flat, *post), **heads}
        if flat or above:
            layers["fcnet_activation"] = activation_above
        yield taken(read, why, **layers)
        return
    base = (256, 256) if hiddens is None else _widths("fcnet_hiddens", hiddens)
    settings = {} if hiddens is None and not post else {"fcnet_hiddens": (*base, *post)}
    settings |= heads
    if heads and activation_above != (activation or "tanh"):
        yield changes(
            {f"model/{above_by}": activation_above},
            "all layers have the same activation: set fcnet_activation to it, or write a model",
        )
    if above and not base:
        activation = activation_above
    if activation is not None:
        settings["fcnet_activation"] = activation
    if settings:
        yield taken(read, **settings)
    elif read:
        yield harmless(read, "for images, or layers above the others")


def _square(shape: tuple[int, ...]) -> int | None:
    """The height of an image that is as wide, its channels last or first; None of others."""
    for sides in (shape[:2], shape[1:]):
        if len(set(sides)) == 1:
            return sides[0]
    return None


def _initializers(values: Values, context: Context) -> Iterator[Row]:
    """RLModules begin as PyTorch has it but for layers with an initialiser; older models as here.

    PPO's heads read none of these, and networks for images have no such layers.
    """
    if not context.new_stack:
        if read := given_of(values, *OF_INITIALIZERS):
            yield harmless(read, "RLlib's models without RLModules begin by normc all the same")
        return
    for setting, (names, arguments) in INITIALIZERS.items():
        name, read = first(values, *names), given_of(values, *names, *arguments)
        if name is not None and context.image_shape is None:
            chosen = {setting: _initializer(name)}
            if kwargs := first(values, *arguments):
                chosen[f"{setting}_kwargs"] = kwargs
            yield taken(read, **chosen)
        elif setting == "fcnet_kernel_initializer":
            why = "PyTorch's, as RLModules have it"
            yield taken(read, why, fcnet_kernel_initializer="uniform")
        elif read:
            yield harmless(read, "PyTorch's, as RLModules have it")


def _initializer(value: Any) -> Any:
    """A function of `torch.nn.init` as its name, which RLlib reads in any case of letters."""
    name = getattr(value, "__name__", value) if callable(value) else value
    return name.lower() if isinstance(name, str) else name


def _widths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name}={brief(value)} must be a list of layer sizes")
    return tuple(value)


def seed(values: Values, context: Context) -> Iterator[Row]:
    if values["seed"] is None:
        yield harmless(values, "RLlib draws one; here seed=0 where none is given")
    else:
        yield taken(values, seed=values["seed"])


def previous(values: Values, context: Context) -> Iterator[Row]:
    """The old name of two settings at once."""
    if any(values.values()):
        yield taken(values, lstm_use_prev_action=True, lstm_use_prev_reward=True)
    else:
        yield harmless(values, "")


def counting(values: Values, context: Context) -> Iterator[Row]:
    """The unit in which a batch's steps are counted, which matters only with several agents."""
    unit, number = values["count_steps_by"], context.num_acting
    if unit == "env_steps" or not context.is_multi_agent:
        yield harmless(values, "")
    elif unit != AGENT_STEPS:
        yield changes(values, "it is env_steps or agent_steps")
    elif number is None:
        yield changes(
            values,
            "batches count environment steps, and how many agents act in each is not known: say "
            "train_batch_size in those",
        )
    else:
        why = f"{number} agents act in every step of the environment, which batches count here"
        yield taken(values, why)


def custom_model(values: Values, context: Context) -> Iterator[Row]:
    """A Flax module, as an instance or a class; `custom_model_config` are the class's arguments."""
    model, arguments = (values.get(key) for key in CUSTOM_MODEL)
    why = "a model of your own is a Flax module: docs/models.md#a-model-of-your-own"
    if isinstance(model, type) and issubclass(model, nn.Module):
        try:
            model, arguments = model(**(arguments or {})), None
        except TypeError as error:
            why = one_line(error)
    elif isinstance(model, nn.Module):
        why = "custom_model_config has the arguments of a class, and this model is made already"
    if not (model or arguments):
        yield harmless(values, "")
    elif isinstance(model, nn.Module) and not arguments:
        yield taken(values, model=model)
    else:
        yield changes(values, why)


def optimizer(values: Values, context: Context) -> Iterator[Row]:
    """Adam in both, whose epsilon `optimizer` may hold."""
    value = values["optimizer"]
    if isinstance(value, Mapping) and tuple(value) == OF_ADAM:
        yield taken(values, **value)
    elif value:
        yield changes(values, "optimizer=... takes a function from learning rate to optax's")
    else:
        yield harmless(values, "Adam in both")


def source(values: Values, context: Context) -> Iterator[Row]:
    """PPO plays its own episodes in both."""
    for key, value in values.items():
        if value in (None, "sampler"):
            yield harmless({key: value}, "PPO learns from the episodes that it plays")
        else:
            why = (
                "PPO learns from no files; BCConfig(input=...) does, and env='external' learns "
                "from programs that connect (docs/serving.md)"
            )
            yield changes({key: value}, why)


def written(values: Values, context: Context) -> Iterator[Row]:
    folder = values["output"]
    if folder == "logdir":
        yield changes(values, "output=FOLDER writes the played episodes, as Parquet files")
    elif isinstance(folder, str):
        yield taken(values, "as Parquet files", output=folder)
    elif folder is None:
        yield harmless(values, "no episodes are written")
    else:
        yield changes(values, "output=FOLDER writes the played episodes, as Parquet files")


def explore(values: Values, context: Context) -> Iterator[Row]:
    if values["explore"]:
        yield harmless(values, "actions are sampled in training")
    else:
        yield changes(values, "explore=False is for policies that do not learn")


def actions(values: Values, context: Context) -> Iterator[Row]:
    """The bounds of a Box: RLlib stretches actions to them, or else clips them if that is said."""
    normalizes = first(values, "normalize_actions", default=True)
    if "normalize_actions" in values:
        yield taken(given_of(values, "normalize_actions"), normalize_actions=normalizes)
    clips = given_of(values, "clip_actions")
    if normalizes is False:
        yield taken(clips, clip_actions=values.get("clip_actions", False))
    elif clips:
        yield harmless(clips, "actions that are stretched between their bounds keep to them")


def together(read: Callable, *keys: str, always: bool = False) -> Rule:
    return Rule(keys, read, always)


POLICY_RULES = (  # which a policy may have of its own
    schedule_of("lr", "lr_schedule", "learning_rate_schedule"),
    schedule_of("entropy_coeff", "entropy_coeff_schedule"),
    together(advantages, "lambda", "lambda_", "use_gae", "use_critic"),
    together(
        network,
        *(f"model/{name}" for name in (*LAYERS, *MEMORY)),
        *(*OF_INITIALIZERS, *SHARED),
        always=True,
    ),
    together(previous, "model/lstm_use_prev_action_reward"),
    together(custom_model, *CUSTOM_MODEL),
    together(filtering, "observation_filter", *TO_MODULE),
    together(optimizer, "optimizer"),
    together(clipping, "clip_rewards", always=True),
    together(explore, "explore"),
    together(actions, "normalize_actions", "clip_actions"),
    together(exploration, "exploration_config"),
)
TRAINING_RULES = (
    together(sizes, *SIZES, *LEARNERS, *MINIBATCH, *PER_ITERATION, "batch_mode", always=True),
    together(atari, *OF_ATARI, always=True),
    together(seed, "seed"),
    together(counting, "count_steps_by"),
    together(callbacks, *CALLBACKS),
    together(source, "input", "input_"),
    together(written, "output"),
    together(curriculum, "env_task_fn"),
)
