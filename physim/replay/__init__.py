"""An engine replayed request by request, exact for a step time."""
