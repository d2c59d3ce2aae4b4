"""The run-time type checker of the tests: an integer is a float, as the type system has it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
