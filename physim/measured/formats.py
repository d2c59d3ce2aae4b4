"""The reports that are read: a module of this folder for each, named like its format."""

FORMATS = (
    *("inference-perf", "guidellm", "vllm-bench", "blis-trace", "aiperf", "llm-d", "mlperf"),
    "metrics",
)
# Whichever of them a file looks like.
AUTO = "auto"
