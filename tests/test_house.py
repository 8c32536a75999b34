"""The walls of the house: which folder imports which, sizes and names, what an import may cost.

Every guard is a function from a file's path and source to its complaints, so that each can be shown
a bad source.
"""

import ast
import functools
import graphlib
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    str(file.relative_to(ROOT)): file.read_text()
    for folder in ("jaxrl", "envs")
    for file in sorted((ROOT / folder).rglob("*.py"))
}


@functools.cache
def tree_of(source):
    """The syntax tree of a source: most guards look at all of them."""
    return ast.parse(source)


@functools.cache
def nodes_of(source):
    return tuple(ast.walk(tree_of(source)))


BELOW_RUN = {"core", "ops", "models", "rollout", "algorithms"}
ABOVE_RUN = {"outside", "play", "cluster", "export", "replay"}  # what only some runs need
EVERYTHING = {
    *(*BELOW_RUN, "an algorithm", "episodes", "offline", "outside/workers", "run", *ABOVE_RUN),
    *(
        "sweeps",
        "publishing",
        "rllib",
        "serving",
        "adapters",
        "adapters/fast",
        "adapters/wrapping",
        "adapters/to",
        "cli",
        "jaxrl",
    ),
}
MAY_IMPORT = {
    "core": set(),
    "ops": {"core"},
    "models": {"core", "ops"},
    "rollout": {"core", "ops", "models"},
    "algorithms": {"core", "ops", "models", "rollout", "episodes"},
    "an algorithm": BELOW_RUN,  # a folder of its own, which no other algorithm imports
    "episodes": {"core"},
    "offline": {"core", "ops", "models", "episodes"},
    "run": BELOW_RUN,  # an algorithm is reached through the configuration alone
    "outside/workers": {"core"},  # environments outside JAX
    "outside": {*BELOW_RUN, "episodes", "outside/workers", "run"},
    "play": {*BELOW_RUN, "episodes", "outside", "run"},
    "cluster": {*BELOW_RUN, "run"},
    "export": {*BELOW_RUN, "run", "play"},
    "replay": {*BELOW_RUN, "run", "play", "sweeps"},
    "sweeps": {*BELOW_RUN, "run", "play"},
    "publishing": {*BELOW_RUN, "offline", "run", "play", "export", "replay", "sweeps"},
    "serving": {*BELOW_RUN, "episodes", "run", "outside", "outside/workers", "export"},
    "rllib": {
        *BELOW_RUN,
        "an algorithm",
        "run",
        "sweeps",
    },  # its configurations; RLlib is not imported
    "adapters/fast": set(),
    "adapters/wrapping": {"core", "adapters/fast"},
    "adapters/from": {"core", "adapters/fast", "adapters/wrapping"},
    "adapters/to": EVERYTHING,
    "adapters": set(),  # its __init__.py
    "cli": EVERYTHING,
    # The public surface; an adapter to a library imports the library when it is called.
    "jaxrl": EVERYTHING - {"adapters"},
    "envs": {"core"},
    "envs/networks": {"core", "ops", "models"},
}
# Imports in functions: a setting or a call asks for what a plain training does without.
MAY_IMPORT_WHEN_ASKED = {"run": {*ABOVE_RUN, "episodes"}}
MAY_NAME = {  # what a floor or a file may name in a text, as settings do
    "envs": {"envs/networks"},
    # what they were called in files
    "jaxrl/run/storage/migrate.py": {"envs", "envs/networks", "envs as a package of its own"},
}
# All that episodes import, and what worker processes import.
CORE_WITHOUT_JAX = tuple(
    f"jaxrl.core.{module}"
    for module in (
        *("errors", "fields", "foreign_names", "json_text", "machine", "mask_parts", "words"),
        *("agent_steps", "atari_names", "env_config", "number_types", "python_kinds", "trust"),
        "value_copies",
    )
)
WORKERS_WITH_JAX = {  # the side that learns
    f"jaxrl/outside/workers/{module}.py"
    for module in (
        *("local", "pictured", "pool", "probing", "python_env", "vector"),
        *("simulator_copies", "simulator_env", "simulators", "tensors"),
    )
}
MAY_BE_IMPORTED_BY = {
    "gymnax": {"jaxrl/adapters/from_gymnax.py", "jaxrl/adapters/to_gymnax.py"},
    "brax": {"jaxrl/adapters/from_brax.py"},
    "jaxmarl": {"jaxrl/adapters/from_jaxmarl.py", "jaxrl/adapters/to_jaxmarl.py"},
    "craftax": {"jaxrl/adapters/from_craftax.py"},
    "mujoco_playground": {"jaxrl/adapters/from_playground.py"},
    "navix": {"jaxrl/adapters/from_navix.py"},
    "xminigrid": {"jaxrl/adapters/from_xminigrid.py"},
    "pgx": {"jaxrl/adapters/from_pgx.py"},
    "jumanji": {"jaxrl/adapters/from_jumanji.py"},
    "envpool": {"jaxrl/adapters/from_envpool.py"},
    "orbax": {"jaxrl/run/storage/array_storage.py"},
    "tensorstore": {"jaxrl/run/storage/array_storage.py"},
    "tensorboardX": {"jaxrl/run/logging/tensorboard.py"},
    "wandb": {"jaxrl/run/logging/wandb.py"},
    "trackio": {"jaxrl/run/logging/trackio.py"},
    "mlflow": {"jaxrl/run/logging/mlflow.py"},
    "matplotlib": {
        *("jaxrl/run/logging/figures.py", "jaxrl/sweeps/lineage_plots.py"),
        "jaxrl/adapters/from_jaxmarl.py",
        "jaxrl/adapters/from_pgx.py",  # its fonts
    },
    "PIL": {"jaxrl/play/video.py", "jaxrl/core/pictures.py", "jaxrl/adapters/from_pgx.py"},
    "resvg_py": {"jaxrl/adapters/from_pgx.py"},
    "imageio": {"jaxrl/play/video.py"},
    "ray": {
        *("jaxrl/adapters/to_ray_tune.py", "jaxrl/adapters/to_rllib.py"),
        "jaxrl/outside/ray_rollouts.py",
    },
    "gymnasium": {
        *("jaxrl/adapters/to_gymnasium.py", "jaxrl/adapters/to_rllib.py"),
        "jaxrl/episodes/minari_datasets.py",
        *(f"jaxrl/outside/workers/{module}.py" for module in ("masks", "sources", "space_forms")),
        "jaxrl/outside/workers/atari.py",
    },
    "pettingzoo": {"jaxrl/adapters/to_pettingzoo.py", "jaxrl/outside/workers/copies.py"},
    "stable_baselines3": {"jaxrl/adapters/to_sb3.py"},
    "pyarrow": {
        *("jaxrl/episodes/bounded_table.py", "jaxrl/episodes/parquet.py"),
        "jaxrl/episodes/rllib_rows.py",
    },
    "minari": {"jaxrl/episodes/minari_datasets.py"},
    "msgspec": {"jaxrl/serving/protocol.py", "jaxrl/episodes/rllib_states.py"},
    "websockets": {"jaxrl/serving/server.py"},
    "optuna": {"jaxrl/sweeps/search.py"},
    "huggingface_hub": {"jaxrl/run/storage/hub.py"},
    "psutil": {"jaxrl/run/node.py"},
    "safetensors": {"jaxrl/publishing/publish.py"},
    "jax2onnx": {"jaxrl/export/onnx_file.py"},
    "onnx": {"jaxrl/export/onnx_file.py"},
    "onnxruntime": {"jaxrl/export/onnx_file.py"},
}
ALGORITHMS = {
    folder.name for folder in (ROOT / "jaxrl" / "algorithms").iterdir() if folder.is_dir()
}
MAX_FUNCTION_LINES, MAX_MODULE_LINES, MAX_COLUMNS = 60, 500, 100
MAX_PARAMETERS = 6
MORE_PARAMETERS = {  # with the reason
    ("jaxrl/ops/advantages.py", "gae"): "one for each term of the paper's formula",
    ("jaxrl/adapters/to_ray_tune.py", "trainable"): "users' own, like the names in jaxrl",
    ("jaxrl/run/inference/episode_access.py", "sample"): "a method of Trainer, which is in jaxrl",
    ("jaxrl/run/inference/weights.py", "compute_single_action"): "a method of Trainer, by RLlib's",
    **{
        ("jaxrl/episodes/agents_data.py", f"get_{what}"): "RLlib's, of MultiAgentEpisode"
        for what in ("observations", "actions", "extra_model_outputs")
    },
}
PUBLIC_NAMES = {
    alias.asname or alias.name
    for node in ast.parse(FILES["jaxrl/__init__.py"] + FILES["jaxrl/episodes/__init__.py"]).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
VAGUE_WORDS = {"own", "one", "it", "its", "ours", "theirs", "their", "mine"}
VAGUE_PARTICIPLES = {"told", "seen", "known", "wanted", "given", "kept", "each"}  # as whole names
ON_THE_WIRE = {("jaxrl/serving/protocol.py", "known")}
NO_FIRST_WORDS = {  # of a docstring
    *("After", "As", "Between", "By", "For", "From", "How", "Its", "Of", "So", "That", "Their"),
    *("These", "Those", "To", "Under", "Until", "What", "When", "Where", "Whether", "Which"),
    *("Who", "Why", "With", "Within", "Without"),
}
NO_NAMES = ("utils.py", "helpers.py")
TREES = {"PyTree", "jax.Array", "np.ndarray"}
METRICS_OF_PPO = {"mean_kl_loss", "entropy", "vf_loss", "policy_loss", "kl_coeff", "kl_target"}
FORMER_FORMS_IN = "jaxrl/run/storage/migrate.py"  # names, parts of the state, panels
FORMER_FORMS = re.compile(r"(?<![a-z])former|(?<!was )renamed|earlier version", re.IGNORECASE)
ARRAY_MAKERS = re.compile(
    r"jax\.(numpy|random)\..*|jax\.device_put|"
    r"numpy\.(array|asarray|zeros|ones|full|empty|arange|linspace|eye|identity|stack|concatenate|tile|random\..*|\w+_like)"
)
NOT_FOR_IMPORT = (
    *(
        "gymnax",
        "matplotlib",
        "PIL",
        "imageio",
        "seaborn",
        "gymnasium",
        "pettingzoo",
        "stable_baselines3",
        "jaxmarl",
        "brax",
        "craftax",
        "mujoco_playground",
        "navix",
        "xminigrid",
        "pgx",
        "jumanji",
        "envpool",
        "ray",
        "torch",
        "orbax",
        "tensorstore",
        "tensorboardX",
        "wandb",
        "trackio",
        "mlflow",
        "pyarrow",
        "minari",
        "msgspec",
        "websockets",
        "optuna",
        "huggingface_hub",
        "safetensors",
        "jax2onnx",
        "onnx",
        "onnxruntime",
        "tomllib",  # other libraries' names are read when a name is unknown
    ),
)
MAX_IMPORTED_MODULES = 294  # jaxrl's that `import jaxrl` loads


# The guards


def floor_of(path):
    """The row of MAY_IMPORT that a file of the repository belongs to."""
    package, *rest = Path(path).with_suffix("").parts
    if package == "envs":  # jaxrl.envs, a link to this folder
        return "envs/networks" if rest[:-1] == ["networks"] else "envs"
    if rest[0] == "adapters" and len(rest) > 1 and rest[1] != "__init__":
        return f"adapters/{rest[1].partition('_')[0]}"
    if rest[0] == "algorithms" and len(rest) > 2:
        return "an algorithm"
    if rest[:2] == ["outside", "workers"]:
        return "outside/workers"
    return "jaxrl" if rest[0] in ("__init__", "__main__") else rest[0]


def target_floor(module):
    """The floor that `jaxrl.rollout.rollout` or `jaxrl.make` is on; None for other packages.

    `envs.arena` would be the same file as a second module, with classes of its own: a floor that
    nobody may import.
    """
    package, *rest = module.split(".")
    if package == "envs":
        return "envs as a package of its own"
    if package != "jaxrl":
        return None
    if rest[:1] == ["algorithms"] and rest[1:2] and rest[1] in ALGORITHMS:
        return "an algorithm"
    if rest[:1] == ["adapters"] and rest[1:2] and rest[1].startswith(("to_", "fast", "wrapping")):
        return f"adapters/{rest[1].partition('_')[0]}"
    if rest[:2] in (["envs", "networks"], ["outside", "workers"]):
        return "/".join(rest[:2])
    return rest[0] if rest and rest[0] in {*EVERYTHING, "envs"} else "jaxrl"


def imports(path, source, walk=ast.walk):
    """(line, dotted name) of every import, wherever it stands, relative ones resolved.

    Also those by a call with a string. `walk` says which parts of the source count.
    """
    folder = Path(path).parent.parts
    for node in walk(tree_of(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__", "find_spec")
        ):
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, name) for name in names if isinstance(name, str))


def run_at_once(parent):
    """The nodes that run as a module is imported: none of functions, none for types alone."""
    for node in ast.iter_child_nodes(parent):
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (is_for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield node
            yield from run_at_once(node)


def named_environments(source):
    """(line, dotted name) of the modules of `envs/`, and of what is in them, that a text names."""
    form = re.compile(r"((jaxrl\.)?envs\.\w+(\.\w+)*)(:\w+(\(.*)?)?")
    for node in nodes_of(source):
        if isinstance(node, ast.Constant) and (match := form.fullmatch(str(node.value))):
            yield node.lineno, match[1]


def forbidden_arrows(path, source):
    floor = floor_of(path)
    if floor not in MAY_IMPORT:
        return [f"{path}: the house has no floor {floor!r}; give it a row in MAY_IMPORT"]
    allowed = MAY_IMPORT[floor] | ({floor} if not floor.startswith("adapters") else set())
    nameable = allowed | MAY_NAME.get(floor, set()) | MAY_NAME.get(path, set())
    when_asked = allowed | MAY_IMPORT_WHEN_ASKED.get(floor, set())
    at_once = set(imports(path, source, run_at_once))
    arrows = [
        *((line, name, "import", allowed) for line, name in at_once),
        *((line, name, "import", when_asked) for line, name in {*imports(path, source)} - at_once),
        *((line, name, "name", nameable) for line, name in named_environments(source)),
    ]
    return [
        f"{path}:{line}: {floor} may not {verb} {target} ({name})"
        for line, name, verb, targets in sorted(arrows, key=lambda arrow: arrow[:3])
        if (target := target_floor(name)) is not None and target not in targets
    ]


def forbidden_packages(path, source):
    return [
        f"{path}:{line}: {package} may be imported by {sorted(owners)} alone"
        for line, name in imports(path, source)
        for package, owners in MAY_BE_IMPORTED_BY.items()
        if name.split(".")[0] == package and path not in owners
    ]


def escapes(path, source):
    """Relative imports that leave the package."""
    depth = len(Path(path).parent.parts)
    nodes = [node for node in nodes_of(source) if isinstance(node, ast.ImportFrom)]
    return [
        f"{path}:{node.lineno}: relative import out of the package"
        for node in nodes
        if node.level > depth
    ]


def docstring_lines(node):
    if ast.get_docstring(node) is None:
        return 0
    return node.body[0].end_lineno - node.body[0].lineno + 1


def too_long(path, source):
    lines = len(source.splitlines())
    complaints = (
        [f"{path}: {lines} lines, more than {MAX_MODULE_LINES}"] if lines > MAX_MODULE_LINES else []
    )
    for node in nodes_of(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1 - docstring_lines(node)
            if length > MAX_FUNCTION_LINES:
                complaints.append(
                    f"{path}:{node.lineno}: {node.name} has {length} lines, more than "
                    f"{MAX_FUNCTION_LINES}"
                )
    return complaints


def too_wide(path, source):
    return [
        f"{path}:{number}: {len(line)} columns, more than {MAX_COLUMNS}"
        for number, line in enumerate(source.splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]


def too_many_parameters(path, source):
    """What travels together is one object.

    What users call by its name from `jaxrl` and `jaxrl.episodes` (functions, and methods of
    classes) may have more settings that are given by keyword, as RLlib's have: there the others are
    counted.
    """
    complaints = []
    for owner, function in functions_of(tree_of(source)):
        arguments = function.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        called = str(owner) if function.name == "__init__" else function.name
        is_public = called[0] != "_" and {owner, called} & PUBLIC_NAMES
        keywords = [] if is_public else arguments.kwonlyargs
        number = len([name for name in names if name not in ("self", "cls")]) + len(keywords)
        if number > MAX_PARAMETERS and (path, function.name) not in MORE_PARAMETERS:
            complaints.append(
                f"{path}:{function.lineno}: {function.name} takes {number} parameters, more than "
                f"{MAX_PARAMETERS}"
            )
    return complaints


def functions_of(node, owner=None):
    """(name of the class that it is a method of or None, function) of all functions below."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, child
            yield from functions_of(child)
        else:
            is_class = isinstance(child, ast.ClassDef)
            yield from functions_of(child, child.name if is_class else owner)


def vague_variables(path, source):
    """Variables, parameters and attributes are called what they are, not `own` or `their_end`."""
    return [
        f"{path}:{line}: {name} says nothing of what it is"
        for line, name in stored_names(source)
        if is_vague(name)
    ]


def stored_names(source):
    """(line, name) of the variables, parameters and attributes that a source gives values to."""
    for node in nodes_of(source):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def vague_participles(path, source):
    """Variables say what they hold: `told` may be texts, weights or observations."""
    return [
        f"{path}:{line}: {name} does not say what it holds"
        for line, name in stored_names(source)
        if name.strip("_") in VAGUE_PARTICIPLES and (path, name) not in ON_THE_WIRE
    ]


def is_vague(name):
    """Returns whether a name is one of the words, or begins or ends with one; `one_hot` may."""
    words = name.strip("_").split("_")
    return words[-1] in VAGUE_WORDS or words[0] in VAGUE_WORDS - {"one"}


def elliptic_docstrings(path, source):
    """A docstring begins with a sentence or a noun, not with "What it is" or "Of the other"."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in nodes_of(source) if isinstance(node, documented)]
    openings = [(node, (ast.get_docstring(node) or "").split()[:1]) for node in nodes]
    return [
        f"{path}:{getattr(node, 'lineno', 1)}: a docstring begins with {opening[0]}"
        for node, opening in openings
        if opening and opening[0].strip(",.:") in NO_FIRST_WORDS
    ]


def full_names(tree):
    """{local name: what it stands for}, for the names that imports bind."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                alias.asname or alias.name.split(".")[0]: alias.name
                for alias in node.names
                if alias.asname
            }
        elif isinstance(node, ast.ImportFrom):
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return names


def run_on_import(node):
    """The nodes below `node` that an import runs.

    All but the bodies of functions, their defaults included.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            defaults = [*child.args.defaults, *(value for value in child.args.kw_defaults if value)]
            for part in (*defaults, *getattr(child, "decorator_list", ())):
                yield part
                yield from run_on_import(part)
        else:
            yield child
            yield from run_on_import(child)


def arrays_on_import(path, source):
    tree = tree_of(source)
    names = full_names(tree)
    complaints = []
    for node in run_on_import(tree):
        if isinstance(node, ast.Call):
            head, dot, tail = ast.unparse(node.func).partition(".")
            called = names.get(head, head) + dot + tail
            if ARRAY_MAKERS.fullmatch(called):
                complaints.append(f"{path}:{node.lineno}: {called} makes an array on import")
    return complaints


def vague_names(path, source):
    return [f"{path}: name a module by what it holds"] if Path(path).name in NO_NAMES else []


def jax_where_there_is_none(path, source):
    """Clients record and read episodes without JAX; worker processes start fast without it."""
    floor = floor_of(path)
    if floor not in ("episodes", "outside/workers") or path in WORKERS_WITH_JAX:
        return []
    return [
        f"{path}:{line}: {floor} import {name}, which needs JAX"
        for line, name in imports(path, source)
        if name.partition(".")[0] in ("jax", "jaxlib", "flax", "optax", "chex")
        or (name.startswith("jaxrl.core.") and not name.startswith(CORE_WITHOUT_JAX))
    ]


def metrics_of_an_algorithm(path, source):
    """What people are shown is named by the algorithm (`headline_metrics`), not by who shows it."""
    if floor_of(path) not in ("run", "sweeps") or path == FORMER_FORMS_IN:
        return []
    return [
        f"{path}:{node.lineno}: {node.value!r} is a metric of one algorithm"
        for node in nodes_of(source)
        if isinstance(node, ast.Constant) and node.value in METRICS_OF_PPO
    ]


def former_forms(path, source):
    """What earlier versions called things, one module knows, for the sake of their files."""
    if path == FORMER_FORMS_IN:
        return []
    return [
        f"{path}:{number}: {found[0]!r} is for {FORMER_FORMS_IN} to say"
        for number, line in enumerate(source.splitlines(), 1)
        if (found := FORMER_FORMS.search(line))
    ]


def imports_in_functions(path, source):
    """Algorithms have no circles of imports that only work when a function is called."""
    if floor_of(path) not in ("algorithms", "an algorithm"):
        return []
    functions = (node for node in nodes_of(source) if isinstance(node, ast.FunctionDef))
    return [
        f"{path}:{node.lineno}: {function.name} imports {name}"
        for function in functions
        for node, name in imports_below(function)
    ]


def imports_below(function):
    """(node, module) of our own modules that a function imports when it is called."""
    nodes = (node for node in ast.walk(function) if isinstance(node, ast.ImportFrom))
    return [(node, node.module) for node in nodes if str(node.module).startswith("jaxrl")]


def file_of(module, files):
    """The file that an import of `jaxrl.run.storage.runs`, or of a name in it, leads to; or None.

    A package stands for what it imports itself: to import a module in it is not to import it.
    """
    is_environments = module.startswith("jaxrl.envs.")
    parts = module.removeprefix("jaxrl." if is_environments else "").split(".")
    places = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    candidates = (f"{place}{end}" for place in places for end in (".py", "/__init__.py"))
    return next((file for file in candidates if file in files), None)


def circle_of_imports(files):
    """The files of one circle, whether they import each other at once, when called or for types."""
    graph = {
        path: {file_of(name, files) for _, name in imports(path, source)} - {path, None}
        for path, source in files.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def absent_as_a_tuple(path, source):
    """What is absent is None: no `State | tuple`, and no () in place of an array or a tree."""
    complaints = []
    for node in nodes_of(source):
        for annotation, default in annotations_of(node):
            is_empty = isinstance(default, ast.Tuple) and not default.elts
            is_tree = not TREES.isdisjoint(ast.unparse(annotation).split(" | "))
            if (is_empty and is_tree) or is_tuple_or_else(annotation):
                complaints.append(
                    f"{path}:{node.lineno}: {ast.unparse(annotation)}: what is absent is None"
                )
    return complaints


def annotations_of(node):
    """(annotation, default or None) of a field or variable, or of all that a function has."""
    if isinstance(node, ast.AnnAssign):
        yield node.annotation, node.value
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args]
        defaults = [*[None] * (len(named) - len(arguments.defaults)), *arguments.defaults]
        pairs = zip(
            [*named, *arguments.kwonlyargs], [*defaults, *arguments.kw_defaults], strict=True
        )
        yield from ((name.annotation, value) for name, value in pairs if name.annotation)
        yield from [(node.returns, None)] if node.returns else []


def is_tuple_or_else(annotation):
    """Whether it has a tuple of anything for an alternative, but to a plain number or None."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval")
    unions = (node for node in ast.walk(annotation) if isinstance(node, ast.BinOp))
    sides = [{ast.unparse(node.left), ast.unparse(node.right)} for node in unions]
    return any("tuple" in pair and pair.isdisjoint(("int", "float", "None")) for pair in sides)


GUARDS = (
    forbidden_arrows,
    forbidden_packages,
    escapes,
    too_long,
    too_wide,
    too_many_parameters,
    vague_variables,
    vague_participles,
    elliptic_docstrings,
    arrays_on_import,
    vague_names,
    jax_where_there_is_none,
    metrics_of_an_algorithm,
    former_forms,
    imports_in_functions,
    absent_as_a_tuple,
)


# The house, as it stands


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.__name__)
def test_the_house_keeps_its_walls(guard):
    assert FILES
    assert [complaint for path, source in FILES.items() for complaint in guard(path, source)] == []


def test_no_modules_import_each_other_in_a_circle():
    assert circle_of_imports(FILES) == []


# Per 1,000 lines that are not blank; the two numbers only fall, to 20 and 16.
MOST_COMPREHENSIONS, MOST_CONDITIONAL_EXPRESSIONS = 28.8, 21.2


def per_thousand_lines(kinds, sources):
    """The number of nodes of some kinds in each 1,000 lines that are not blank."""
    nodes = [node for source in sources for node in nodes_of(source)]
    lines = [line for source in sources for line in source.splitlines() if line.strip()]
    return 1000 * sum(isinstance(node, kinds) for node in nodes) / len(lines)


def test_dense_expressions_become_fewer():
    comprehensions = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    assert per_thousand_lines(comprehensions, FILES.values()) <= MOST_COMPREHENSIONS
    assert per_thousand_lines(ast.IfExp, FILES.values()) <= MOST_CONDITIONAL_EXPRESSIONS


def test_dense_expressions_are_counted_in_lines_that_are_not_blank():
    source = "x = [i for i in y if i]\n\n\nz = {*(a if b else c for a in d)}\n"
    assert per_thousand_lines(ast.ListComp | ast.GeneratorExp, [source]) == 1000
    assert per_thousand_lines(ast.IfExp, [source]) == 500


# What a stranger may have to read; the two numbers only fall.
MOST_FILES_OF_A_TRAINER, MOST_LINES_OF_A_TRAINER = 95, 17_650
NOT_OF_A_TRAINER = (  # in its own folders: what a setting or a call asks for
    *("jaxrl/run/logging/figures", "jaxrl/run/resume", "jaxrl/run/divergence"),
    *("jaxrl/run/inference/policy", "jaxrl/core/drawing", "jaxrl/core/batched_env"),
    *(f"jaxrl/models/{name}" for name in ("attention", "cells", "cnn", "custom", "lookups")),
    "jaxrl/models/recurrent_",
    *("jaxrl/algorithms/opponents", "jaxrl/rollout/opponents", "jaxrl/rollout/critic_inputs"),
    "jaxrl/rollout/recorded_steps",
)


def module_level_imports(path, source):
    """The files of the house that a file imports as it is imported itself."""
    for _, name in imports(path, source, run_at_once):
        parts = name.split(".")
        for length in range(2, len(parts) + 1):
            file = "/".join(parts[:length])
            yield from {f"{file}.py", f"{file}/__init__.py"} & FILES.keys()


def test_what_a_trainer_imports_leaves_out_what_only_some_runs_need():
    found, waiting = set(), ["jaxrl/run/trainer.py"]
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            waiting += module_level_imports(path, FILES[path])
    floors = {floor_of(path) for path in found}
    assert floors <= {*BELOW_RUN, "run"}
    assert [path for path in sorted(found) if path.startswith(NOT_OF_A_TRAINER)] == []
    assert len(found) <= MOST_FILES_OF_A_TRAINER
    assert sum(len(FILES[path].splitlines()) for path in found) <= MOST_LINES_OF_A_TRAINER


def test_names_in_tests_benchmarks_and_the_documentation_are_as_telling():
    sources = {
        str(file.relative_to(ROOT)): file.read_text()
        for folder in ("tests", "benchmarks", "scripts")
        for file in sorted((ROOT / folder).rglob("*.py"))
    }
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        sources[str(page.relative_to(ROOT))] = "\n".join(blocks)
    assert len(sources) > 100
    complaints = (vague_variables(path, source) for path, source in sources.items())
    assert list(itertools.chain.from_iterable(complaints)) == []


IMPORT_REPORT = f"""
import importlib, json, pkgutil, sys

def report():
    from jax._src import xla_bridge
    packages = {{name.partition(".")[0] for name in sys.modules}}
    found = packages & set({NOT_FOR_IMPORT!r})
    environments = [name for name in sys.modules if name.startswith("jaxrl.envs.")]
    backends = sorted(xla_bridge._backends)
    return {{"found": sorted([*found, *environments]), "backends": backends}}

import jaxrl
num_modules = sum(name.partition(".")[0] == "jaxrl" for name in sys.modules)
surface = {{**report(), "num_modules": num_modules}}
for module in pkgutil.walk_packages(jaxrl.__path__, "jaxrl."):
    if not module.name.startswith(("jaxrl.adapters.", "jaxrl.serving.")):
        importlib.import_module(module.name)
modules = report()
for name in {sorted(path[:-3].replace("/", ".") for path in FILES if path.startswith("envs/"))!r}:
    importlib.import_module(f"jaxrl.{{name}}")
print(json.dumps([surface, modules, report()]))
"""


@pytest.fixture(scope="module")
def import_reports(tmp_path_factory):
    """What is loaded after `import jaxrl`, after its modules but the adapters, its environments."""
    command = [sys.executable, "-c", IMPORT_REPORT]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run(
        command, cwd=elsewhere, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_jaxrl_loads_no_environment_and_none_of_the_slow_packages(import_reports):
    surface, modules, _ = import_reports
    assert surface["found"] == []
    assert modules["found"] == []


def test_import_jaxrl_loads_no_more_modules_than_it_did(import_reports):
    surface, *_ = import_reports
    assert surface["num_modules"] <= MAX_IMPORTED_MODULES


def test_importing_makes_no_array_and_starts_no_device(import_reports):
    assert [report["backends"] for report in import_reports] == [[], [], []]


# The guards themselves


LONG_FUNCTION = "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES


BROKEN = {
    forbidden_arrows: {
        "jaxrl/core/env.py": [
            "import jaxrl.ops.losses",
            "from jaxrl import make_train",
            "from jaxrl import rollout",
        ],
        "jaxrl/ops/losses.py": ["from jaxrl.models.mlp import MLP"],
        "jaxrl/models/mlp.py": ["def f():\n    from jaxrl.rollout import rollout"],
        "jaxrl/algorithms/base.py": ["from .ppo import config", "from . import ppo"],
        "jaxrl/algorithms/ppo/train.py": ["from jaxrl.run import trainer"],
        "jaxrl/run/trainer.py": [
            "from jaxrl.algorithms.ppo.config import PPOConfig",
            "importlib.import_module('jaxrl.algorithms.ppo')",
            "import jaxrl.sweeps",
            "from jaxrl.play.evaluate import evaluate",
            "class A:\n    from jaxrl.outside import learner",
            "def f():\n    from jaxrl.serving import server",
        ],
        "jaxrl/play/recording.py": ["def f():\n    from jaxrl.replay.page import page"],
        "jaxrl/outside/learner.py": ["from jaxrl.play.load import load_policy"],
        "jaxrl/sweeps/trials.py": [
            "from jaxrl.algorithms.ppo.config import PPOConfig",
            "from jaxrl import cli",
        ],
        "jaxrl/adapters/from_brax.py": [
            "from jaxrl.rollout import rollout",
            "from jaxrl.adapters import from_gymnax",
        ],
        "jaxrl/adapters/__init__.py": ["from jaxrl.adapters.from_gymnax import constructor"],
        "jaxrl/__init__.py": [
            "from jaxrl.adapters import from_gymnax",
            "from jaxrl.envs.arena import MultiAgentArena",
        ],
        "jaxrl/cli.py": ["from jaxrl.envs.arena import MultiAgentArena"],
        "jaxrl/core/registry.py": [
            "importlib.import_module('jaxrl.envs')",
            "load('jaxrl.envs.arena:MultiAgentArena')",
            "load('envs.arena:MultiAgentArena')",
        ],
        "jaxrl/adapters/to_gymnasium.py": ["import jaxrl.envs"],
        "envs/arena.py": [
            "from envs.cartpole import CartPole",
            "from jaxrl.rollout import rollout",
            "import jaxrl",
            "from jaxrl.envs.networks.cell_memory import CellMemory",
            "importlib.import_module('jaxrl.envs.networks')",
        ],
        "envs/networks/cell_memory.py": [
            "from jaxrl.rollout.steps import Trajectory",
            "from jaxrl.envs.arena import MultiAgentArena",
            "from envs.networks import ray_network",
        ],
        "jaxrl/models/custom.py": [
            "from jaxrl.envs.networks.cell_memory import CellMemory",
            "MEMORY = 'jaxrl.envs.networks.cell_memory:CellMemory(height=3, width=3)'",
        ],
        "jaxrl/dqn/train.py": [""],
        "jaxrl/tools.py": [""],
    },
    forbidden_packages: {
        "jaxrl/core/env.py": ["import gymnax.environments as environments"],
        "jaxrl/adapters/from_brax.py": ["from gymnax import make"],
        "jaxrl/run/trainer.py": ["def save():\n    import orbax.checkpoint as ocp"],
        "jaxrl/sweeps/trial_batch.py": ["def report():\n    from ray import tune"],
        "envs/arena.py": ["def render():\n    import matplotlib.pyplot as plt"],
    },
    escapes: {
        "jaxrl/core/env.py": ["from ...other import thing"],
        "envs/arena.py": ["from .. import jaxrl"],
    },
    too_long: {
        "envs/arena.py": [
            LONG_FUNCTION,
            "class A:\n    " + LONG_FUNCTION.replace("\n", "\n    "),
            "\n" * (MAX_MODULE_LINES + 1),
        ],
    },
    former_forms: {
        "jaxrl/core/env.py": ["over = former_attribute('over', 'episode_done')"],
        "jaxrl/run/storage/checkpoint.py": ["FORMER_NAMES = {}", "# as it was formerly"],
        "jaxrl/ops/advantages.py": ["from jaxrl.core import renamed"],
        "envs/arena.py": ["# what earlier versions called it"],
    },
    metrics_of_an_algorithm: {
        "jaxrl/run/logging/console.py": ["def line(result):\n    return result['mean_kl_loss']"],
    },
    imports_in_functions: {
        "jaxrl/algorithms/ppo/config.py": [
            "class A:\n    def f(self):\n        from jaxrl.algorithms.ppo.ppo import make_ppo"
        ],
    },
    arrays_on_import: {
        "envs/arena.py": [
            "import jax.numpy as jnp\nMOVES = jnp.zeros(3)",
            "from jax import numpy as jnp\nclass A:\n    x: int = jnp.int32(3)",
            "import jax\nKEY = jax.random.key(0)",
            "import jax\nMOVES = [jax.numpy.ones(n) for n in range(3)]",
            "from jax.numpy import zeros\ndef f(x=zeros(3)):\n    pass",
            "import numpy as np\nMOVES = (np.array([1, 2]),)",
            "import jax.numpy as jnp\nif True:\n    f = (lambda x=jnp.ones(2): x)",
        ],
    },
    vague_names: {
        "jaxrl/loop/utils.py": [""],
        "envs/helpers.py": [""],
    },
    jax_where_there_is_none: {
        "jaxrl/episodes/column.py": [
            "import jax.numpy as jnp",
            "from jaxrl.core.spaces import Box",
        ],
        "jaxrl/outside/workers/copies.py": [
            "import jax",
            "from jaxrl.core.types import DEFAULT_AGENT",
        ],
    },
    too_wide: {
        "envs/arena.py": ["x = 1  # " + "wide " * 19],
    },
    too_many_parameters: {
        "jaxrl/ops/losses.py": ["def loss(a, b, c, d, *, e, f, g): pass"],
        "jaxrl/run/load.py": ["def render(a, b, c, d, e, f, g): pass"],
        "jaxrl/run/trainer.py": [
            "class Trainer:\n    def _tell(self, a, b, c, d, *, e, f, g): pass"
        ],
    },
    vague_variables: {
        "envs/arena.py": [
            "own = 1",
            "def f(their_reward): pass",
            "class A:\n    mine: int = 0",
            "x = [one.value for one in range(3)]",
            "self.half_of_it = 1",
        ],
    },
    vague_participles: {
        "envs/arena.py": [
            "seen = 1",
            "def f(*, given): pass",
            "x = [len(each) for each in ()]",
            "self._kept = None",
        ],
    },
    elliptic_docstrings: {
        "jaxrl/core/env.py": [
            '"""What an environment is."""',
            'def f():\n    """Whether it ended."""',
            'class A:\n    def f(self):\n        """Of a step.\n\n        More.\n        """',
        ],
        "envs/arena.py": ['async def f():\n    """As `step`, but later."""'],
    },
    absent_as_a_tuple: {
        "jaxrl/rollout/rollout.py": [
            "class A:\n    carry: PyTree = ()",
            "class A:\n    mask: jax.Array | None = ()",
            "class A:\n    state: State | Other | tuple = ()",
            "def f(x, present: PyTree = ()): pass",
            "def f(*, groups: tuple[Rows | tuple, ...]): pass",
            "def f() -> 'Rows | tuple': pass",
        ],
    },
}


@pytest.mark.parametrize(
    ("guard", "path", "source"),
    [
        (guard, path, source)
        for guard, by_path in BROKEN.items()
        for path, sources in by_path.items()
        for source in sources
    ],
)
def test_a_guard_sees_what_it_is_there_for(guard, path, source):
    assert len(guard(path, source)) == 1


ALLOWED = {
    "jaxrl/core/registry.py": [
        "importlib.import_module(module)\nfrom .errors import UsageError\nimport os"
    ],
    "jaxrl/core/env.py": [
        '"""The name that `arena = "jaxrl.envs.arena:MultiAgentArena"` says."""',
        'def f():\n    """Returns whether it ended."""\n    # What follows may say as much.',
        'def f():\n    """Asks how much is left, which whether it ended decides."""',
    ],
    "jaxrl/algorithms/ppo/train.py": [
        "from jaxrl.algorithms.base import RunnerState\n"
        "from jaxrl.algorithms.ppo.config import PPOConfig"
    ],
    "jaxrl/sweeps/trials.py": [
        "from jaxrl.run.trainer import Trainer\nfrom jaxrl.core.registry import make"
    ],
    "jaxrl/adapters/from_gymnax.py": ["import gymnax\nfrom jaxrl.core.env import Environment"],
    "jaxrl/adapters/to_gymnasium.py": [
        "from jaxrl.run.trainer import Trainer\nfrom jaxrl import make"
    ],
    "jaxrl/run/logging/figures.py": ["def f():\n    import matplotlib"],
    "jaxrl/cli.py": [
        "from jaxrl import PPOConfig\nfrom jaxrl.algorithms.ppo.config import settings\n"
        "import jaxrl.sweeps.trials"
    ],
    "jaxrl/__init__.py": [
        "from jaxrl.algorithms.ppo.ppo import make_train\nfrom jaxrl.sweeps import sweep\n"
        "from jaxrl.adapters.to_gymnasium import to_gymnasium"
    ],
    "envs/arena.py": [
        "from jaxrl.core.env import Environment\nfrom jaxrl.envs.cartpole import CartPole",
        "import jax, jax.numpy as jnp\nf = jax.jit(lambda x: jnp.ones(3))\nLIMIT = jnp.inf",
        "import numpy as np\nKIND = np.dtype('int32')\ndef f():\n    return np.zeros(3)",
        LONG_FUNCTION.replace("    pass\n", "", 1),
        "MODEL = 'jaxrl.envs.networks.cell_memory:CellMemory'",
    ],
    "envs/networks/cell_memory.py": [
        "from jaxrl.models.model import carried\nfrom jaxrl.envs.networks import ray_network",
    ],
    "jaxrl/core/spaces.py": [
        "def f(start: int | tuple = (), name: str = '', *, rows: tuple[PyTree, ...] = ()): pass",
        "class A:\n    spaces: tuple | None = None\n    policies: Sequence[str] = ()",
    ],
    "jaxrl/run/load.py": ["def render(path, *, a, b, c, d, e, f, g): pass"],
    "jaxrl/run/storage/checkpoint.py": ["raise ValueError('it was renamed')  # in a transformer"],
    "jaxrl/run/storage/migrate.py": [
        "FORMER = {'former': 'entropy'}  # of earlier versions",
        "MOVED = 'jaxrl.envs.networks.cell_memory', 'envs.arena:MultiAgentArena'",
    ],
    "jaxrl/run/trainer.py": [
        "class Trainer:\n    def fit(self, a, b, c, d, e, f): one_hot = 'one'",
        "def f():\n    from jaxrl.play.evaluate import evaluate",
        "if TYPE_CHECKING:\n    from jaxrl.outside.program import OutsideProgram",
    ],
}


@pytest.mark.parametrize(
    "back",
    [
        "import jaxrl.run.a",
        "from jaxrl.run import a",
        "from jaxrl.run.a import A",
        "from .a import A",
        "def f():\n    from jaxrl.run.a import A",
        "class A:\n    def f(self):\n        import jaxrl.run.a",
        "importlib.import_module('jaxrl.run.a')",
        "if TYPE_CHECKING:\n    from jaxrl.run.a import A",
        "from jaxrl.run import storage",
    ],
)
def test_a_circle_is_seen_however_it_is_closed(back):
    package = {"jaxrl/run/storage/__init__.py": "from jaxrl.run.a import A"}
    files = {"jaxrl/run/a.py": "from jaxrl.run.b import B", "jaxrl/run/b.py": "", **package}
    assert circle_of_imports(files) == []
    closed = circle_of_imports({**files, "jaxrl/run/b.py": back})
    assert {"jaxrl/run/a.py", "jaxrl/run/b.py"} <= set(closed)


def test_a_package_that_gathers_modules_which_import_each_other_is_no_circle():
    gathered = "from jaxrl.run.a import A\nfrom jaxrl.run.b import B"
    files = {"jaxrl/run/__init__.py": gathered, "jaxrl/run/b.py": "from jaxrl.run.a import A"}
    assert circle_of_imports({**files, "jaxrl/run/a.py": ""}) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [(path, source) for path, sources in ALLOWED.items() for source in sources],
)
def test_the_guards_let_through_what_is_allowed(path, source):
    assert [complaint for guard in GUARDS for complaint in guard(path, source)] == []


def test_ppo_is_read_in_twelve_files_with_twenty_classes():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## PPO in reading order")[1].split("\n## ")[0]
    files = re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)
    classes = [
        node.name
        for file in files
        for node in ast.parse((ROOT / "jaxrl" / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert len(files) == len(set(files)) == 12
    assert len(classes) <= 20, classes


def test_the_map_of_the_house_names_what_is_there():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    quoted = {text for text in re.findall(r"`([^`\n]+)`", page) if re.fullmatch(r"[\w./]+", text)}
    code = "\n".join(FILES.values())
    places = [ROOT, ROOT / "jaxrl", ROOT / "jaxrl" / "algorithms"]
    unknown = {
        text
        for text in quoted
        if not any((place / text).exists() for place in places)
        and not re.search(rf"\b{re.escape(text.rpartition('.')[2])}\b", code)
    }
    assert len(quoted) > 40
    assert unknown == set()
