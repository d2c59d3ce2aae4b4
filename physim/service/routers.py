"""How a router spreads requests over the servers of a pool."""

from __future__ import annotations

# In turn; by chance; to the one with the fewest requests, or KV blocks in use; by the scores of
# prefix, free cache and queue of llm-d; and to the one that a prefix was sent to before, as the
# router of an engine does.
ROUTERS = (
    ROUND_ROBIN,
    RANDOM,
    LEAST_REQUESTS,
    LEAST_KV,
    PREFIX_SCORES,
    CACHE_AWARE,
) = ("round_robin", "random", "least_requests", "least_kv", "prefix_scores", "cache_aware")

# Those that send requests of one prefix to one server.
BY_PREFIX = (PREFIX_SCORES, CACHE_AWARE)
