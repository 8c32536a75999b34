"""Tests of spaces: samples, membership, equality, and the errors for invalid ones."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.core.program_spaces import from_program, is_alike_inside, program_space, to_program
from jaxrl.core.spaces import (
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Tuple,
    from_json,
    parts_of,
    space_of,
    to_json,
    tree_of,
)
from tests.messages import refusal, refused
from tests.spaces_strategy import is_equal, member, trees

FEW = settings(max_examples=15, derandomize=True)
SEEDS = st.integers(0, 2**31 - 1)
COUNTS = st.integers(1, 10**6)
BOUNDS = st.one_of(st.just(np.inf), st.floats(-1e6, 1e6, width=32))


def few_sizes(elements):
    """Lists of one or of four: each further size is compiled anew."""
    return st.sampled_from([1, 4]).flatmap(
        lambda size: st.lists(elements, min_size=size, max_size=size)
    )


def check_sample(space, seed):
    sample = space.sample(jax.random.key(seed))
    assert sample.shape == space.shape
    assert sample.dtype == space.dtype
    assert space.contains(sample)
    assert jax.jit(space.contains)(sample)


@FEW
@given(COUNTS, SEEDS)
def test_a_discrete_sample_is_contained(n, seed):
    check_sample(Discrete(n), seed)


@FEW
@given(few_sizes(COUNTS), SEEDS)
def test_a_multidiscrete_sample_is_contained(nvec, seed):
    check_sample(MultiDiscrete(tuple(nvec)), seed)


@FEW
@given(few_sizes(st.tuples(BOUNDS, BOUNDS)), SEEDS)
def test_a_box_sample_is_contained_whatever_the_bounds(bounds, seed):
    low = [-np.inf if np.isinf(first) else min(first, second) for first, second in bounds]
    high = [max(first, second) for first, second in bounds]
    check_sample(Box(low, high), seed)


@FEW
@given(
    st.sampled_from(["uint8", "int8", "int32"]), st.integers(-300, 300), st.integers(0, 300), SEEDS
)
def test_an_integer_box_sample_is_contained(dtype, low, width, seed):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    low = int(np.clip(low, least, most))
    check_sample(Box(low, min(low + width, most), (3,), dtype), seed)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_an_integer_box_gives_both_of_its_ends(dtype):
    assert set(np.unique(Box(3, 5, (200,), dtype).sample(jax.random.key(0)))) == {3, 4, 5}


def test_an_integer_box_without_bounds_can_be_sampled():
    check_sample(Box(-np.inf, np.inf, (4,), "int32"), 0)
    check_sample(Box(-np.inf, np.inf, (4,), "uint8"), 0)


def test_a_discrete_space_gives_each_of_its_values_as_often():
    draws = jax.vmap(Discrete(4).sample)(jax.random.split(jax.random.key(0), 4000))
    assert np.all(np.abs(np.bincount(draws, minlength=4) - 1000) < 120)


def test_only_integers_of_the_right_shape_within_the_range_are_contained():
    assert Discrete(3).contains(2)
    for wrong in (-1, 3, 1.0, jnp.array([1]), True):
        assert not Discrete(3).contains(wrong)
    space = MultiDiscrete((2, 5))
    assert space.contains(jnp.array([1, 4]))
    for wrong in ([2, 0], [0, -1], [0.0, 1.0], [1], [1, 1, 1], [[1, 1]]):
        assert not space.contains(jnp.array(wrong))


def test_a_box_contains_its_bounds_and_neither_nan_nor_another_shape():
    space = Box([-1.0, 0.0], [1.0, np.inf])
    assert space.contains(jnp.array([-1.0, 0.0]))
    assert space.contains(jnp.array([1.0, np.inf]))
    for wrong in ([-1.1, 0.0], [0.0, -0.1], [np.nan, 0.0], [0.0], [[0.0, 0.0]]):
        assert not space.contains(jnp.array(wrong))


def test_contains_can_be_compiled_and_vmapped():
    values = jnp.arange(5)
    np.testing.assert_array_equal(
        jax.jit(jax.vmap(Discrete(3).contains))(values), [True, True, True, False, False]
    )
    pairs = jnp.stack([values, values], 1)
    np.testing.assert_array_equal(
        jax.jit(jax.vmap(MultiDiscrete((3, 2)).contains))(pairs), [True, True, False, False, False]
    )
    assert not jax.jit(MultiDiscrete((3, 2)).contains)(jnp.zeros(3, jnp.int32))


def test_spaces_are_equal_and_hash_alike_by_what_they_hold():
    same = [
        (Discrete(3), Discrete(np.int64(3))),
        (MultiDiscrete((2, 3)), MultiDiscrete(np.array([2, 3]))),
        (Box(0, 1, (2,)), Box(np.zeros(2), np.ones(2))),
        (Box(-1.0, [1.0, 2.0]), Box(jnp.full(2, -1.0), jnp.array([1.0, 2.0]), (2,), np.float32)),
    ]
    for space, equal in same:
        assert space == equal
        assert hash(space) == hash(equal)
    different = {
        Discrete(2),
        Discrete(3),
        MultiDiscrete((2,)),
        Box(0, 2),
        Box(0, 2, (1,)),
        Box(0, 2, (1,), "uint8"),
    }
    assert len(different) == 6


def test_a_space_can_be_a_static_argument():
    sample = jax.jit(lambda space, key: space.sample(key), static_argnums=0)
    for space in (Discrete(3), MultiDiscrete((2, 3)), Box([0.0, 1.0], 2.0)):
        assert space.contains(sample(space, jax.random.key(0)))


def test_spaces_are_frozen():
    for space, name in ((Discrete(3), "n"), (MultiDiscrete((2,)), "nvec"), (Box(0, 1), "low")):
        with pytest.raises(AttributeError):
            setattr(space, name, 4)


def test_bounds_that_agree_are_one_number_and_others_nested_tuples():
    assert Box(np.zeros((2, 2)), 1).low == 0.0
    assert Box([[0, 1], [0, 2]], 3).low == ((0.0, 1.0), (0.0, 2.0))
    assert Box([[0, 1], [0, 2]], 3).shape == (2, 2)
    assert Box(0, 1, (4, 3)).size == 12


test_what_cannot_be_a_space_is_refused_with_its_value = refused(
    [
        (lambda: Discrete(0), "Discrete(n=0): 0 must be at least 1"),
        (lambda: Discrete(2.5), "2.5 is no whole number"),
        (lambda: Discrete("3"), "'3' is no whole number"),
        (lambda: MultiDiscrete(()), "nvec must be an array of one or more counts"),
        (lambda: MultiDiscrete(3), "nvec must be an array of one or more counts"),
        (lambda: MultiDiscrete((2, 0)), "0 must be at least 1"),
        (lambda: MultiDiscrete(((2, 3), (4,))), "(2, 3) is no whole number"),
        (lambda: Discrete(3, start=0.5), "Discrete(n=3): start=0.5: 0.5 is no whole number"),
        (lambda: MultiDiscrete((2, 3), start=(1,)), "start has the shape (1,), not (2,)"),
        (lambda: Discrete(3, start=2**31 - 2), "its values do not fit into 32 bits"),
        (lambda: Discrete(2**40), "its values do not fit into 32 bits"),
        (lambda: MultiDiscrete((2, 1.5)), "1.5 is no whole number"),
        (lambda: Box(1.0, 0.0), "Box low 1.0 is above high 0.0"),
        (lambda: Box([0.0, 2.0], 1.0), "Box low (0.0, 2.0) is above high 1.0"),
        (lambda: Box(np.nan, 1.0), "Box low holds NaN"),
        (
            lambda: Box([0.0, 0.0], [1.0, 1.0, 1.0]),
            "Box low of shape (2,) does not fit high of shape (3,)",
        ),
        (lambda: Box([0.0, 0.0], 1.0, (3,)), "Box low of shape (2,) does not fit shape (3,)"),
        (lambda: Box(0.0, 1.0, 3), "Box shape must be a tuple of whole numbers, not 3"),
    ],
    literal=True,
)


# Starts and shapes


def test_integers_may_start_anywhere_and_lie_in_any_shape():
    assert [bool(Discrete(3, start=-1).contains(value)) for value in (-2, -1, 1, 2)] == [
        *(False, True, True, False)
    ]
    grid = MultiDiscrete([[2, 3], [4, 5]], start=[[5, -4], [0, 1]])
    assert grid.shape == (2, 2)
    assert grid.counts == (2, 3, 4, 5)
    assert grid.contains([[6, -2], [3, 5]])
    assert not grid.contains([[7, -2], [3, 5]])
    assert not grid.contains([6, -2, 3, 5])
    assert MultiDiscrete((2, 3), start=(4, 4)).start == 4
    assert hash(grid) == hash(MultiDiscrete(np.array([[2, 3], [4, 5]]), np.array(grid.start)))


def test_a_space_is_written_with_its_start_where_it_has_one():
    assert str(Discrete(3)) == "Discrete(n=3)"
    assert str(Discrete(3, start=-1)) == "Discrete(n=3, start=-1)"
    assert str(MultiDiscrete((2, 3), start=(0, 1))) == "MultiDiscrete(nvec=(2, 3), start=(0, 1))"


def test_json_of_a_space_without_start_is_as_it_was_before_there_were_starts():
    assert to_json(Discrete(3)) == {"space": "Discrete", "n": 3}
    assert from_json({"space": "MultiDiscrete", "nvec": [2, 3]}) == MultiDiscrete((2, 3))
    assert from_json(to_json(Discrete(3, start=-1))) == Discrete(3, start=-1)


def test_a_network_of_the_flat_space_that_was_saved_formerly_serves_the_environments_own():
    environments = to_json(MultiDiscrete([[2, 2], [2, 2]], start=-1))
    assert is_alike_inside({"space": "MultiDiscrete", "nvec": [2, 2, 2, 2]}, environments)
    assert not is_alike_inside({"space": "MultiDiscrete", "nvec": [2, 2, 2]}, environments)
    assert not is_alike_inside(None, environments)


def test_inside_of_a_policy_integers_count_from_0_in_a_row():
    grid = MultiDiscrete([[2, 3], [4, 5]], start=[[5, -4], [0, 1]])
    space = Dict({"key": Discrete(3, start=-1), "grid": grid, "place": Box(0, 1, (1, 2))})
    assert program_space(space) == Dict(
        {"key": Discrete(3), "grid": MultiDiscrete((2, 3, 4, 5)), "place": Box(0, 1, (1, 2))}
    )
    values = {"key": np.int64(-1), "grid": np.array([[6, -4], [1, 1]]), "place": np.ones((1, 2))}
    inside = to_program(space, values)
    assert (inside["key"], inside["grid"].tolist()) == (0, [1, 0, 1, 0])
    assert inside["place"] is values["place"]
    assert to_program(Tuple((Discrete(2), grid)), (1, values["grid"]))[0] == 1


@FEW
@given(trees(), SEEDS, st.sampled_from([(), (3,), (2, 2)]))
def test_values_come_back_from_the_program_as_they_were(space, seed, batch):
    values = member(space, seed, batch)
    inside = to_program(space, values)
    assert is_equal(space, from_program(space, inside), values)
    low = jax.tree.map(np.min, jax.tree.leaves(inside))
    spaces = jax.tree.leaves(tree_of(program_space(space)))
    assert all(isinstance(part, Box) or least >= 0 for part, least in zip(spaces, low, strict=True))


def test_jax_converts_as_numpy_does():
    space = Tuple((Discrete(3, start=-1), MultiDiscrete([[2, 3]], start=[[1, 2]])))
    values = member(space, 0, (4,))
    inside = jax.jit(lambda values: to_program(space, values, jnp))(values)
    assert is_equal(program_space(space), inside, to_program(space, values))
    assert is_equal(space, from_program(space, inside, jnp), values)


# Trees

TREE = Dict(
    {
        "place": Box(-1.0, 1.0, (2,)),
        "hand": Tuple((Discrete(3), MultiDiscrete((2, 4)))),
        "age": Discrete(5),
    }
)


@FEW
@given(trees(), SEEDS)
def test_of_a_tree_samples_lie_inside_and_json_and_leaves_lead_back_to_it(space, seed):
    sample = space.sample(jax.random.key(seed))
    assert space.contains(sample)
    assert jax.tree.structure(sample) == jax.tree.structure(tree_of(space))
    checked = jax.tree.map(lambda part, leaf: bool(part.contains(leaf)), tree_of(space), sample)
    assert all(jax.tree.leaves(checked))
    assert from_json(json.loads(json.dumps(to_json(space)))) == space
    assert hash(space_of(tree_of(space))) == hash(space)


def test_the_parts_of_a_dict_are_in_jaxs_order_whatever_order_they_were_given_in():
    other = Dict(dict(reversed(TREE.spaces.items())))
    assert (other, hash(other)) == (TREE, hash(TREE))
    assert [name for name, _ in TREE.parts] == ["age", "hand", "place"]
    assert [
        leaf.tolist() for leaf in jax.tree.leaves({"place": jnp.array(2), "age": jnp.array(0)})
    ] == [0, 2]
    assert TREE["hand"][1] == MultiDiscrete((2, 4))
    assert TREE.spaces["place"] == Box(-1.0, 1.0, (2,))


def test_parts_are_named_by_their_way_through_the_tree():
    values = {"age": 1, "hand": (2, 3), "place": 4}
    parts = [(name, value) for name, _, value in parts_of(TREE, values)]
    assert parts == [("age", 1), ("hand/0", 2), ("hand/1", 3), ("place", 4)]
    assert list(parts_of(Discrete(3), 7)) == [("", Discrete(3), 7)]


def test_what_differs_in_names_length_or_any_part_is_not_contained_in_a_tree():
    inside = TREE.sample(jax.random.key(0))
    assert jax.jit(TREE.contains)(inside)
    wrong = [
        {**inside, "age": jnp.int32(5)},
        {**inside, "hand": (jnp.int32(0),)},
        {**inside, "hand": (jnp.int32(3), inside["hand"][1])},
        {**inside, "more": jnp.int32(0)},
        {"age": inside["age"]},
        inside["age"],
        (),
    ]
    assert not any(TREE.contains(value) for value in wrong)


def test_every_part_of_a_sample_has_numbers_of_its_own():
    first, second = Tuple((Box(0.0, 1.0), Box(0.0, 1.0))).sample(jax.random.key(0))
    assert first != second


test_what_cannot_be_a_tree_is_refused_with_its_value = refused(
    [
        (lambda: Dict({}), "Dict needs a mapping {name: space} of one or more spaces, not {}"),
        (lambda: Dict({1: Discrete(2)}), "Dict needs a mapping {name: space}"),
        (lambda: Dict(3), "Dict needs a mapping {name: space} of one or more spaces, not 3"),
        (
            lambda: Dict((("a", Discrete(2)), ("a", Discrete(3)))),
            "Dict needs a mapping {name: space}",
        ),
        (lambda: Dict({"a": 3}), "Dict['a'] must be a space of jaxrl.core.spaces, not 3"),
        (lambda: Tuple(()), "Tuple needs a list of one or more spaces, not ()"),
        (lambda: Tuple({"a": Discrete(2)}), "Tuple needs a list of one or more spaces"),
        (
            lambda: Tuple((Discrete(2), "b")),
            "Tuple[1] must be a space of jaxrl.core.spaces, not 'b'",
        ),
    ],
    literal=True,
)


@pytest.mark.parametrize(
    ("box", "text"),
    [
        (Box(-1.0, 1.0, (3,)), "Box(-1 to 1, (3,), float32)"),
        (
            Box((-4.8, -3.4028235e38), (4.8, 3.4028235e38)),
            "Box([-4.8, -inf] to [4.8, inf], (2,), float32)",
        ),
        (Box(-math.inf, math.inf, (2, 2)), "Box(-inf to inf, (2, 2), float32)"),
        (Box(tuple(range(6)), 9.0, (6,)), "Box([0 ... 5] to 9, (6,), float32)"),
        (Box(0, 255, (8, 8, 3), "uint8"), "Box(0 to 255, (8, 8, 3), uint8)"),
    ],
)
def test_a_box_is_written_in_a_few_digits(box, text):
    assert str(box) == text


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3, start=-1),
        MultiDiscrete((3, 2)),
        Box(-1.0, 1.0, (2, 3)),
        Dict({"image": Box(0, 255, (4,), "uint8"), "pair": Tuple((Discrete(2), Discrete(5)))}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a_draw_without_a_key_is_numpys_and_another_one_each_time(space):
    draws = [space.sample() for _ in range(20)]
    assert all(space.contains(draw) for draw in draws)
    leaves = [jax.tree.leaves(draw) for draw in draws]
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves[0])
    assert len({str(drawn) for drawn in leaves}) > 1
    keyed = space.sample(jax.random.key(0))
    for drawn, keyless in zip(jax.tree.leaves(keyed), leaves[0], strict=True):
        assert (drawn.shape, drawn.dtype) == (keyless.shape, keyless.dtype)


def test_a_draw_without_a_key_is_refused_where_it_would_be_compiled_once_and_for_all():
    with refusal(r"sample\(\) in a compiled program .*: give it a key"):
        jax.jit(lambda: Discrete(3).sample())()
