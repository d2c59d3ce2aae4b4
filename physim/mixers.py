"""Work of what stands for attention in a layer, beside attention on keys and values of KV heads.

A kind's work is a sum of terms, each over a window of the context: sparse attention has one over
the tokens that it chooses and one over all that it chooses among; a recurrent state is a window of
one token, since it stands for all before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physim import roofline
from physim.models.layers import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    StateSpace,
    cached_bytes,
)
from physim.types import Number

_16_BIT = roofline.BYTES_16_BIT


@dataclass(frozen=True)
class DecodeTerm:
    """Work of decoding requests over a window of their context, on one GPU.

    Attributes:
        window: Tokens that are seen at most; None for all.
        pair_flops: FLOP for each token that a request sees.
        pair_bytes: Bytes moved likewise.
    """

    window: int | None
    pair_flops: float
    pair_bytes: float


@dataclass(frozen=True)
class PrefillTerm:
    """Work of prompts over a window before each token, on one GPU.

    Attributes:
        window: Tokens that a token sees at most, itself included; None for all.
        pair_flops: FLOP for each token that a new token sees.
        token_bytes: Bytes moved for each new token.
        cached_bytes: Bytes moved for each cached token.
    """

    window: int | None
    pair_flops: float
    token_bytes: float
    cached_bytes: float


def decode_terms(mixer: Mixer, tp: float, kv_bytes: float) -> list[DecodeTerm]:
    """The terms of decoding, those with a window first.

    Args:
        mixer: The attention of a layer.
        tp: GPUs that share its heads.
        kv_bytes: Bytes of an element of the KV cache.
    """
    heads = max(mixer.heads / tp, 1.0)
    if isinstance(mixer, LinearAttention):
        flops, moved = roofline.state_update(1.0, heads, mixer.key_dim, mixer.value_dim)
        return [DecodeTerm(1, float(flops), float(moved))]
    if isinstance(mixer, StateSpace):
        flops, moved = roofline.state_update(1.0, heads, mixer.state, mixer.head_dim)
        return [DecodeTerm(1, float(flops), float(moved))]
    if isinstance(mixer, CompressedAttention):
        return _compressed(mixer, heads)
    if isinstance(mixer, LatentAttention):
        flops = 2 * heads * (2 * mixer.latent + mixer.rope_dim)
    else:
        flops = 2 * heads * (mixer.head_dim + mixer.values)
    own = cached_bytes(mixer, tp, kv_bytes)
    return [DecodeTerm(mixer.window, flops, own), *_scored(mixer)]


def prefill_terms(mixer: Mixer, tp: float, kv_bytes: float) -> list[PrefillTerm]:
    """The terms of prefill, those with a window first.

    Args:
        mixer: The attention of a layer.
        tp: GPUs that share its heads.
        kv_bytes: Bytes of an element of the KV cache.
    """
    heads = max(mixer.heads / tp, 1.0)
    if isinstance(mixer, LinearAttention | StateSpace):
        flops, moved = prefill_work(mixer, tp, kv_bytes, 1.0, 1024.0)
        return [PrefillTerm(1, float(flops) / 1024, float(moved) / 1024, 0.0)]
    if isinstance(mixer, LatentAttention) and mixer.window is None:
        width = mixer.head_dim + mixer.value_dim
        # What is cached is read, multiplied up, and written and read as keys and values of heads.
        cached = cached_bytes(mixer, tp, kv_bytes) + 2 * heads * width * _16_BIT
        return [PrefillTerm(None, 2 * heads * width, 2 * heads * width * _16_BIT, cached)]
    terms = decode_terms(mixer, tp, kv_bytes)
    vectors = heads * _query_width(mixer) * _16_BIT
    return [
        PrefillTerm(
            term.window,
            term.pair_flops,
            term.pair_bytes + (vectors if place == 0 else 0.0),
            term.pair_bytes,
        )
        for place, term in enumerate(terms)
    ]


def decode_work(
    mixer: Mixer, tp: float, kv_bytes: float, requests: Number, context: Number
) -> roofline.Work:
    """Work of a layer's decoding requests, all terms together.

    Args:
        mixer: The attention of a layer.
        tp: GPUs that share its heads.
        kv_bytes: Bytes of an element of the KV cache.
        requests: Requests that decode.
        context: Tokens that each has, the new one included.
    """
    work: roofline.Work = (0.0, requests * request_bytes(mixer, tp))
    for term in decode_terms(mixer, tp, kv_bytes):
        seen = requests * np.minimum(context, term.window or np.inf)
        work = roofline.plus(work, (term.pair_flops * seen, term.pair_bytes * seen))
    return work


def prefill_work(
    mixer: Mixer, tp: float, kv_bytes: float, requests: Number, tokens: Number
) -> roofline.Work:
    """Work of a layer's prompts with nothing cached, all terms together.

    Args:
        mixer: The attention of a layer.
        tp: GPUs that share its heads.
        kv_bytes: Bytes of an element of the KV cache.
        requests: Prompts.
        tokens: Tokens of each.
    """
    heads = max(mixer.heads / tp, 1.0)
    if isinstance(mixer, LinearAttention):
        return roofline.state_scan(requests, tokens, heads, mixer.key_dim, mixer.value_dim)
    if isinstance(mixer, StateSpace):
        return roofline.state_scan(requests, tokens, heads, mixer.state, mixer.head_dim)
    if isinstance(mixer, LatentAttention) and mixer.window is None:
        pairs = roofline.causal_pairs(tokens, tokens)
        return roofline.latent_prefill(
            *(requests, pairs, tokens, heads, mixer.latent, mixer.head_dim, mixer.value_dim)
        )
    work: roofline.Work = (0.0, 0.0)
    for term in prefill_terms(mixer, tp, kv_bytes):
        pairs = roofline.causal_pairs(tokens, np.minimum(tokens, term.window or np.inf))
        own = (term.pair_flops * requests * pairs, term.token_bytes * requests * tokens)
        work = roofline.plus(work, own)
    return work


def request_bytes(mixer: Mixer, tp: float) -> float:
    """Bytes of a decoding request's queries and outputs in a layer; of a state the term has them.

    Args:
        mixer: The attention of the layer.
        tp: GPUs that share its heads.
    """
    if isinstance(mixer, LinearAttention | StateSpace):
        return 0.0
    return max(mixer.heads / tp, 1.0) * _query_width(mixer) * _16_BIT


def _query_width(mixer: Mixer) -> float:
    """Numbers of a head's query and output, as the attention reads and writes them."""
    if isinstance(mixer, LatentAttention):
        return 2.0 * mixer.latent + mixer.rope_dim
    if isinstance(mixer, Attention):
        return float(mixer.head_dim + mixer.values)
    assert isinstance(mixer, CompressedAttention)  # a state has no queries of its own
    return 2.0 * mixer.head_dim


def _compressed(mixer: CompressedAttention, heads: float) -> list[DecodeTerm]:
    flops, moved = 4.0 * heads * mixer.head_dim, mixer.vector_bytes
    terms = [DecodeTerm(mixer.window, flops, moved)]
    if mixer.ratio:
        reach = mixer.chosen * mixer.ratio if mixer.chosen else None
        terms.append(DecodeTerm(reach, flops / mixer.ratio, moved / mixer.ratio))
    return [*terms, *_scored(mixer)]


def _scored(mixer: Attention | LatentAttention | CompressedAttention) -> list[DecodeTerm]:
    """The term of the indexer, if there is one."""
    if mixer.indexer is None:
        return []
    index = mixer.indexer
    flops, moved = roofline.scoring(1 / index.ratio, 1 / index.ratio, index.heads, index.dim)
    return [DecodeTerm(None, float(flops), float(moved))]
