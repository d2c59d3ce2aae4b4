"""Files for planners, autoscalers and routers, each with how far its form is off."""
