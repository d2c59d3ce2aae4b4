"""Whether what requests might find in the cache is evicted before, in words."""

from __future__ import annotations

from physim.inputs.case import Case

# Share of the prefixes' tokens that are found from which on all of them count as kept.
ALL_FIT = 0.98


def evictions(case: Case, hit_rate: float, host_hit_rate: float = 0.0) -> list[str]:
    """Lines that say so, or none.

    Args:
        case: The case, with a load.
        hit_rate: Share of the prompt tokens that are found in the prefix cache.
        host_hit_rate: Share of them that come up from the host's memory.
    """
    load, kv = case.demanded, case.server.kv
    if load.conversing:
        return _of_turns(case, hit_rate, host_hit_rate)
    blocks = round(load.cached_tokens) // kv.block_size
    whole = load.repeated * blocks * kv.block_size / load.mean_input
    # Lengths say themselves what is found.
    if load.lengths is not None or not blocks:
        return []
    what = f"{load.prefixes:,} of {blocks:,} KV blocks each have no room beside requests"
    room = f"in a cache of {kv.blocks:,}"
    host = kv.host
    if host is None:
        if hit_rate >= ALL_FIT * whole:
            return []
        return [
            f"prefixes are evicted before they are asked for again, and computed anew: {what} "
            f"{room}"
        ]
    lines = []
    if hit_rate - host_hit_rate < ALL_FIT * whole:
        lines.append(
            f"prefixes are evicted from the GPU's memory before they are asked for again: {what} "
            f"{room}; {host_hit_rate:.1%} of prompt tokens come up from the host's memory"
        )
    if hit_rate < ALL_FIT * whole:
        lines.append(
            f"{whole - hit_rate:.1%} of prompt tokens are computed anew, for which {host.blocks:,} "
            "blocks in the host's memory "
            + ("" if kv.disk is None else f"and {kv.disk.blocks:,} on disk ")
            + "have no room"
        )
    return lines


def slow_writes(case: Case, requests_per_s: float, hit_rate: float) -> list[str]:
    """A line that the disk cannot take what is computed as fast as it comes, or none.

    Args:
        case: The case, with a load.
        requests_per_s: Requests that are completed per second.
        hit_rate: Share of the prompt tokens that are found in the prefix cache, not written again.
    """
    load, server = case.demanded, case.server
    kv, disk = server.kv, server.kv.disk
    if disk is None:
        return []
    tokens = (1.0 - hit_rate) * load.mean_input
    tokens += load.mean_output if kv.host_memory.outputs else 0.0
    of_gpu = requests_per_s / server.parallelism.dp * tokens / kv.block_size * kv.block_bytes
    if of_gpu <= disk.write_bandwidth:
        return []
    asked, most = (one * server.parallelism.gpus / 1e9 for one in (of_gpu, disk.write_bandwidth))
    return [
        f"{asked:.3g} GB/s are to be written to the disk, which takes {most:.3g}: it will have "
        "fewer prefixes than predicted"
    ]


def _of_turns(case: Case, hit_rate: float, host_hit_rate: float) -> list[str]:
    """What becomes of what was said before turns of conversations."""
    load, kv = case.demanded, case.server.kv
    turns, lines = load.turn_sample, []
    prefix = turns.prefix_found(kv.block_size)
    ranks = case.server.parallelism.dp
    most = float(turns.found_tokens(kv.block_size).mean()) - prefix
    most *= (turns.known_on(ranks) - prefix) / max(turns.known_on(1) - prefix, 1.0)
    found = (hit_rate * turns.mean_input - prefix) / max(most, 1.0)
    if most and found < ALL_FIT:
        lines.append(
            f"{max(1.0 - found, 0.0):.0%} of what was said before turns is evicted until the next "
            f"one comes, and computed anew, in a cache of {kv.blocks:,} KV blocks"
        )
    if kv.host is not None:
        lines.append(f"{host_hit_rate:.1%} of prompt tokens come up from the host's memory")
    if ranks > 1:
        lines.append(
            f"turns go to any of {ranks} data-parallel ranks, and find what was said before them "
            "as far as it was computed there"
        )
    return lines
