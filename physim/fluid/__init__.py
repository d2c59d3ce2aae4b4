"""An engine under a load as a fluid: a differentiable balance of arrivals, batch and queue."""
