"""The serving loop: from step times and a load to latency and throughput."""
