"""Measured efficiency of GPU kernels relative to their roofline."""
