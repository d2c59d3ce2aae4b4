"""How a router spreads requests over the servers of a pool."""

from __future__ import annotations

ROUTERS = (
    ROUND_ROBIN,
    RANDOM,
    LEAST_REQUESTS,
    LEAST_KV,
    PREFIX_SCORES,
    CACHE_AWARE,
) = ("round_robin", "random", "least_requests", "least_kv", "prefix_scores", "cache_aware")
"""In turn; by chance; to the one with the fewest requests, or KV blocks in use; by llm-d's scores
of prefix, free cache and queue; and where SGLang's router sent the prefix before."""

BY_PREFIX = (PREFIX_SCORES, CACHE_AWARE)
"""Those that send requests of one prefix to one server."""
