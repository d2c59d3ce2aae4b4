"""Whether the prefixes of a load are evicted before they are asked for again, in words."""

from __future__ import annotations

from physim.inputs.case import Case

# Share of the prefixes' tokens that are found from which on all of them count as kept.
_ALL_FIT = 0.98


def evictions(case: Case, hit_rate: float) -> list[str]:
    """A line that says so, or none.

    Args:
        case: The case, with a load.
        hit_rate: Share of the prompt tokens that are found in the prefix cache.
    """
    load, kv = case.demanded, case.server.kv
    blocks = round(load.cached_tokens) // kv.block_size
    kept = hit_rate * load.mean_input >= _ALL_FIT * blocks * kv.block_size
    # Lengths say themselves what is found.
    if load.lengths is not None or kept:
        return []
    return [
        "prefixes are evicted before they are asked for again, and computed anew: "
        f"{load.prefixes:,} of {blocks:,} KV blocks each have no room beside requests in a cache "
        f"of {kv.blocks:,}"
    ]
