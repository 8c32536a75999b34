"""Environments of other libraries: names, arguments and objects that make no sense."""

import importlib
import sys
import types

import jax
import pytest

import jaxrl
from jaxrl.core import registry
from tests.attack.foreign import EXAMPLES, constructor_of, of_arguments, of_names, of_objects
from tests.attack.nonsense import failures

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


@pytest.mark.long
@pytest.mark.parametrize("family", [of_names, of_arguments, of_objects])
@pytest.mark.parametrize("scheme", EXAMPLES)
def test_names_arguments_and_objects_that_make_no_sense_are_refused_in_one_line(scheme, family):
    name, package = EXAMPLES[scheme]
    pytest.importorskip(package, reason=f"the extra {scheme} is not installed")
    constructor_of(scheme)  # its import may take seconds
    with jax.numpy_rank_promotion("allow"):
        assert failures(family(scheme, name)) == {}


class TooOld(types.ModuleType):
    """A library that fails wherever it is used."""

    def __getattr__(self, name):
        raise RuntimeError("needs an older JAX")


BROKEN = {
    "missing": (lambda package: None, "is not installed: pip install "),
    "another thing": (types.ModuleType, r"cannot be \w+"),
    "too old": (TooOld, "cannot be .*needs an older JAX"),
}
SCHEMES = [scheme for scheme in EXAMPLES if scheme not in ("gym", "pettingzoo")]


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_library_that_is_missing_or_broken_is_told_in_one_line(scheme, how, monkeypatch):
    name, package = EXAMPLES[scheme]
    for module in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    make, message = BROKEN[how]
    monkeypatch.setitem(sys.modules, package, make(package))
    adapter = registry.points_of(registry.SCHEMES)[scheme].module
    monkeypatch.delitem(sys.modules, adapter, raising=False)
    with pytest.raises(jaxrl.UsageError, match=message) as error:
        jaxrl.make(f"{scheme}:{name}")
    assert f"environments {scheme}:NAME" in str(error.value) and "\n" not in str(error.value)
    sys.modules.pop(adapter, None)


def test_an_adapter_of_another_package_that_fails_is_told_in_one_line(monkeypatch):
    adapter = importlib.import_module("jaxrl.adapters.from_gymnax")
    monkeypatch.setattr(adapter, "adapt", lambda *_: [][1])
    import gymnax

    env = gymnax.make("CartPole-v1")[0]
    with pytest.raises(jaxrl.UsageError, match="'CartPole' cannot be used as one of gymnax: Index"):
        jaxrl.make(env)
