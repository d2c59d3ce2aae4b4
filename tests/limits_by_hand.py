"""Limits written once, for the fluid and for the replay."""

from physim.replay.config import ReplayConfig
from physim.service.kv_store import KVStore, KVTier
from physim.service.policy import Policy
from physim.service.sizes import Sizes


def config_of(limits, **others):
    """The replay's server of the fluid's limits, which are those of one rank."""
    admission = (
        "request" if limits.whole_requests else "prompt" if limits.whole_prompts else "chunk"
    )
    return ReplayConfig(
        Sizes(limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len),
        KVStore(
            (KVTier(limits.kv_blocks),),
            limits.block_size,
            limits.window_share,
            limits.window,
            limits.state_blocks,
        ),
        Policy(admission, limits.prompts_apart, limits.receive_every, limits.async_scheduling),
        **others,
    )
