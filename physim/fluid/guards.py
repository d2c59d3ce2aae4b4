"""Least values that keep divisions, logarithms and roots finite where there is nothing.

They are no part of the model: what is so little changes no prediction.
"""

# What is put below a divisor, in any unit; below a share or a number of requests or tokens; and
# below what is known to some tenths of a percent.
TINY, SMALL, LITTLE = 1e-9, 1e-6, 1e-3
# What is added beneath a root, whose derivative at nothing is infinite.
ROOT = 1e-12
