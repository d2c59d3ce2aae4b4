"""The one error that physim raises for input it cannot use."""

from __future__ import annotations


class InputError(ValueError):
    """Input that cannot be used: one line that names the place, the fault and the remedy.

    Args:
        where: The file, option or field at fault, for example ``config.json: hidden_size``.
        what: What is wrong with it.
        remedy: What the user can do about it.
    """

    def __init__(self, where: str, what: str, remedy: str) -> None:
        self.where, self.what, self.remedy = where, what, remedy
        super().__init__(f"{where}: {what}; {remedy}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        """Its parts, so that it can leave a worker process."""
        return type(self), (self.where, self.what, self.remedy)


class UnsolvedError(InputError):
    """A load that changes in a way that the fluid's solver does not follow."""
