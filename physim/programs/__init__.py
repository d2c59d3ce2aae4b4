"""What a function computes, as straight-line Python on NumPy: ready in a tenth of XLA's time."""
