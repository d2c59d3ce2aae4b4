"""Experts whose rows a kernel pads to whole blocks, as DeepGEMM's contiguous grouped GEMM does.

vLLM makes as many rows as all experts may need, a block less one row of padding for each beside the
tokens' own (``compute_aligned_M`` of its ``deep_gemm_utils.py``), and the kernel loads weights for
blocks without a token as for others (DeepGEMM, ``scheduler.cuh``: it skips their products alone).
So a few tokens take as long as if they visited all experts.
"""

from __future__ import annotations

import numpy as np

from physim import roofline
from physim.engines.profile import PaddedExperts
from physim.models.layers import Experts
from physim.step.component import Placement
from physim.step.curves import TOKENS

# Rows of a block.
BLOCK_ROWS = 128
# Shares of the memory's bandwidth at which blocks load their weights, and of peak FLOP/s at which
# rows of tokens are multiplied: what time grows by from tp 8 to tp 1 on an H100 with DeepSeek-V3's
# experts, less what rows move (vllm-project/vllm pull request 13932). 128 tokens take 18.5 us for
# each of 262 blocks of 44 MB, and 2,048 tokens 10.2 us more for each of 120 blocks of 11.3 GFLOP.
LOADED, MULTIPLIED = 0.71, 0.56
# Blocks without a token load an expert's weights that stay in the L2 cache: bytes/s that an H100's
# was measured to give (chipsandcheese.com, "Nvidia's H100: Funny L2, and Tons of Bandwidth").
CACHE_BANDWIDTH = 5.5e12
# Bytes that a row moves for each number of the hidden size: read in 8 bit and written in 16;
# and of the width: twice that written in 16 bit, read to be activated, written and read in 8.
_HIDDEN_BYTES, _WIDTH_BYTES = 1 + 2, 4 + 4 + 1 + 1
# The same of a token's row as it is sorted by expert, in 8 bit, and summed up, in 16.
_SORTED_BYTES = 1 + 1 + 2


def padding_kernel(placement: Placement, experts: Experts) -> PaddedExperts | None:
    """The kernel that multiplies a server's experts where it pads their rows; else None.

    Args:
        placement: The model on its GPU.
        experts: The experts.
    """
    server, kernel = placement.server, placement.server.profile.padded_experts
    if kernel is None or placement.multiplied(experts.form).name not in kernel.formats:
        return None
    is_taken = (
        placement.gpu.compute_capability == kernel.compute_capability
        and placement.layout.expert_tp < kernel.below_tp
    )
    if server.moe_kernel is not None:
        is_taken = server.moe_kernel == kernel.kernel
    return kernel if is_taken else None


def padded_seconds(placement: Placement, experts: Experts) -> np.ndarray:
    """Time of a layer of experts at `TOKENS` (`physim.step.curves`), seconds.

    Args:
        placement: The model on its GPU.
        experts: The experts.
    """
    form = placement.multiplied(experts.form)
    layout, bandwidth = placement.layout, placement.gpu.memory_bandwidth
    hidden = experts.hidden_size or placement.model.hidden_size
    width = experts.intermediate_size / layout.expert_tp
    weights = experts.matrices * hidden * width
    count = experts.count / layout.ep
    padding = count * (BLOCK_ROWS - 1)
    visited = roofline.active_experts(TOKENS, count, experts.per_token / layout.ep)
    others = np.maximum(padding / BLOCK_ROWS - visited, 0.0)
    loaded = weights * form.bytes_per_weight / LOADED
    loaded_s = loaded * (visited / bandwidth + others / max(bandwidth, CACHE_BANDWIDTH))
    # Rows of all that tokens choose, of which a GPU multiplies those of its own experts.
    rows = TOKENS * experts.per_token
    multiplied_s = 2 * weights * rows / layout.ep / (MULTIPLIED * placement.peak_flops(form))
    moved = (rows + padding) * (_HIDDEN_BYTES * hidden + _WIDTH_BYTES * width)
    moved += rows / layout.ep * _SORTED_BYTES * hidden
    return np.asarray(loaded_s + multiplied_s + moved / bandwidth)
