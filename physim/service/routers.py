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

# Those that send requests of one prefix to one server, and those that look at what servers have.
BY_PREFIX = (PREFIX_SCORES, CACHE_AWARE)
BY_LOAD = (LEAST_REQUESTS, LEAST_KV, PREFIX_SCORES, CACHE_AWARE)
# Those that take who waits and who decodes for the same. The scores hold who waits alone, so that a
# server with a prompt gets the next one last.
LEVELLING = (LEAST_REQUESTS, LEAST_KV, CACHE_AWARE)

# Queues and KV caches are known from metrics of the servers alone, which llm-d's router reads every
# 50 ms (``--refresh-metrics-interval`` of the Gateway API Inference Extension's endpoint picker, by
# default and at least: ``DefaultRefreshMetricsInterval``). SGLang's counts the requests that it has
# sent, which it knows at once.
_SCRAPED, _SCRAPE_S = (LEAST_KV, PREFIX_SCORES), 0.05


def router_age_s(router: str) -> float:
    """How old what a router sees of servers may be unless it is said, seconds.

    Args:
        router: One of `ROUTERS`.
    """
    return _SCRAPE_S if router in _SCRAPED else 0.0
