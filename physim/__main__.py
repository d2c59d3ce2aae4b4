"""``python -m physim`` is the command ``physim``."""

from physim.cli import script

script()
