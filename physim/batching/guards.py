"""Least and most values that keep what is divided, or has a root or a logarithm, finite."""

# Floors of divisors: in any unit; of shares and of numbers of requests or tokens; and of what is
# known to some tenths of a percent. They change no prediction.
TINY, SMALL, LITTLE = 1e-9, 1e-6, 1e-3
# What is added beneath a root, whose derivative at nothing is infinite.
ROOT = 1e-12
# A share, or a number of requests, that is hardly any: less of it is so seldom felt that formulas
# which end there may stop (chosen on benchmarks/real_traffic.py).
HARDLY = 0.02
# Utilisation from which on a load counts as above capacity: in formulas of queues, and in those of
# means and variances, which are less sure (chosen on benchmarks/fluid_against_replay.py).
FULLEST, NEARLY = 1 - LITTLE, 0.95
# Width of what goes over from one case to the next, as a share, so that percentiles and rates are
# smooth functions of what they depend on.
EDGE = 0.01
