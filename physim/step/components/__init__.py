"""The components of a step, a file each.

A component says how it makes rows of a model on a GPU, which corrections multiply them, which parts
of a step's time they are, and where its figures come from. All that needs every component reads
`COMPONENTS`.
"""

from physim.step.component import Component
from physim.step.components import (
    all_reduce,
    compressed_attention,
    decode_attention,
    elementwise,
    expert_exchange,
    experts,
    gpu_idle,
    latent_attention,
    lm_head,
    mlp,
    pipeline,
    prefill_attention,
    projections,
    recurrent,
    sampling,
    sparse_attention,
)

COMPONENTS: tuple[Component, ...] = (
    projections.COMPONENT,
    mlp.COMPONENT,
    experts.COMPONENT,
    prefill_attention.COMPONENT,
    decode_attention.COMPONENT,
    latent_attention.COMPONENT,
    sparse_attention.COMPONENT,
    compressed_attention.COMPONENT,
    recurrent.COMPONENT,
    elementwise.COMPONENT,
    all_reduce.COMPONENT,
    expert_exchange.COMPONENT,
    pipeline.COMPONENT,
    lm_head.COMPONENT,
    sampling.COMPONENT,
    gpu_idle.COMPONENT,
)
