"""How the layers of a model share the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from physim.mixers.mixer import Mixer


@dataclass(frozen=True)
class CacheLayout:
    """What a request takes of the KV cache of one GPU.

    An engine hands out blocks of tokens of the layers whose keys and values grow with the context.
    What layers with a window keep stops growing, and what others hold as a state never does. (vLLM
    sorts layers into groups that share one pool of pages, ``kv_cache_utils.py``; in bytes that is
    the same but for pages that are not full.)

    Attributes:
        token_bytes: Bytes for each token of the layers that grow; of all, where each has a window.
        window_share: Bytes for each token of the layers with a window, relative to `token_bytes`.
        window: Tokens that those layers keep at most, mean; 0 where there are none.
        state_bytes: Bytes that a request holds whatever its length.
    """

    token_bytes: float
    window_share: float
    window: float
    state_bytes: float

    @classmethod
    def from_layers(
        cls, layers: Mapping[Mixer, float], tp: int, kv_bytes: float, longest: int
    ) -> CacheLayout:
        """The layout of a model.

        Args:
            layers: Each attention that occurs, and how many layers of a GPU have it.
            tp: GPUs that share every layer.
            kv_bytes: Bytes of an element of the cache.
            longest: Longest context, tokens: what keeps more grows as if it kept all.
        """
        growing = windowed = reach = state = 0.0
        for mixer, count in layers.items():
            own, kept = count * mixer.token_bytes(tp, kv_bytes), mixer.kept
            state += count * mixer.state_bytes(tp)
            if kept is None or kept >= longest:
                growing += own
            else:
                windowed += own
                reach += own * kept
        if not growing:
            # Where every layer has a window, blocks are counted as if they looked back on all.
            growing, windowed, reach = max(windowed, 1.0), 0.0, 0.0
        window = reach / windowed if windowed else 0.0
        return cls(growing, windowed / growing, window, state)
