"""What serves: GPUs, an engine on them, pools of such servers, and the service that they make."""
