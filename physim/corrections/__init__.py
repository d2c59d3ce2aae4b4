"""The corrections that a fit may move, the residual network, and the files of fits."""
