"""Least and most values that keep what is divided, or has a root or a logarithm, finite."""

# What is put below a divisor, in any unit; below a share or a number of requests or tokens; and
# below what is known to some tenths of a percent. What is so little changes no prediction.
TINY, SMALL, LITTLE = 1e-9, 1e-6, 1e-3
# What is added beneath a root, whose derivative at nothing is infinite.
ROOT = 1e-12
# A share, or a number of requests, that is hardly any: less of it is so seldom felt that formulas
# which end there may stop (chosen on benchmarks/real_traffic.py).
HARDLY = 0.02
# Share of what there is at most beyond which what is left is no longer a matter of chance: load is
# above the capacity. As far as queues go, and as far as means and variances do, which are less sure
# (chosen on benchmarks/fluid_against_replay.py).
FULLEST, NEARLY = 1 - LITTLE, 0.95
# Width of what goes over from one case to the next, as a share, so that percentiles and rates are
# smooth functions of what they depend on.
EDGE = 0.01
