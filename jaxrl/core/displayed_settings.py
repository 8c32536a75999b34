"""A base class of configurations: in a console and in a notebook, what differs comes first."""


class DisplayedSettings:
    """Settings whose `repr` makes them again, and which a notebook shows as a table."""

    def __repr__(self) -> str:
        from jaxrl.core.settings_display import call_of

        return call_of(self)

    def _repr_html_(self) -> str:
        from jaxrl.core.settings_display import settings_display

        return settings_display(self).html
