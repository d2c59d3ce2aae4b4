"""Cases in, predictions out: steady, transient or replayed, with intervals."""
