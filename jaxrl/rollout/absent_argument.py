"""Arguments of RLlib's hooks for which nothing is here, such as `env_runner`."""

from typing import Any, NoReturn

from jaxrl.core.errors import NoAttribute

ARGUMENTS = "arguments"  # the table of each library's arguments of hooks


class AbsentArgument:
    """The value of a hook's argument that has no counterpart; whatever it is used for is refused.

    So a hook that has RLlib's signature runs as long as it does not use this argument.
    """

    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}: nothing of that kind in jaxrl>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks for
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *arguments: Any, **keywords: Any) -> NoReturn:
        from jaxrl.core.foreign_names import said_of

        raise NoAttribute(f"hooks get no {self._name} here: {said_of(self._name, ARGUMENTS)}")

    __call__ = __getitem__ = __iter__ = __contains__ = __index__ = __float__ = _refuse
