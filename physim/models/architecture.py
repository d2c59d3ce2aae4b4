"""A transformer's shape: groups of layers that are alike, and what is around them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from physim.mixers.attention import CHUNKED_ATTENTION
from physim.mixers.mixer import Mixer
from physim.models.formats import BYTES_16_BIT, WeightFormat
from physim.models.layers import Experts, LayerGroup, padded


@dataclass(frozen=True)
class ModelArch:
    """The shape of a decoder-only transformer.

    Attributes:
        name: Where the configuration came from, for messages.
        family: The architecture class that it was read as.
        groups: Its layers, those that are alike together, in the order in which they come first.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the embedding and of lm_head.
        max_position: Longest context that the model was made for, in tokens.
        tied_embeddings: Whether lm_head shares the embedding's weights.
        qk_norm: Whether queries and keys are normalised for each head.
        gated_mlp: Whether dense MLPs have a gate beside their up projection.
        vision_parameters: Weights of a vision encoder, which take memory but see no text token.
        vision_is_replicated: Whether every GPU has all of them.
        kv_cache_dtype: Format of the KV cache that the checkpoint asks for.
        truncation: What, by the model's own default, tokens are drawn from: ``top_k``, ``top_p``,
            ``top_k_top_p``, or empty for all.
        penalises: Whether, likewise, tokens that occurred before are made less likely.
        note: How the configuration was read, if not for what it says it is.
        quantized_to: What an engine makes of 16-bit weights as it starts; empty for nothing.
        further: A layer that predicts further tokens (MTP), if the checkpoint has any.
    """

    name: str
    family: str
    groups: tuple[LayerGroup, ...]
    hidden_size: int
    vocab_size: int
    max_position: int
    tied_embeddings: bool
    qk_norm: bool = False
    gated_mlp: bool = True
    vision_parameters: int = 0
    vision_is_replicated: bool = False
    kv_cache_dtype: str = "bfloat16"
    truncation: str = ""
    penalises: bool = False
    note: str = ""
    quantized_to: str = ""
    further: LayerGroup | None = None

    @property
    def layers(self) -> int:
        """Decoder layers; where a model lists attention and MLPs apart, all of them."""
        return sum(group.layers for group in self.groups)

    @property
    def reduced_layers(self) -> float:
        """Layers by their all-reduces, of which a layer with attention and MLP has two."""
        return sum(
            group.layers * ((group.attention is not None) + self._has_mlp(group)) / 2
            for group in self.groups
        )

    @property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return sum(group.layers for group in self.groups if not group.experts)

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.dense_layers

    @property
    def experts(self) -> Experts | None:
        """The experts of the first layers that have some, None for a dense model."""
        return next((group.experts for group in self.groups if group.experts), None)

    @property
    def intermediate_size(self) -> int:
        """Hidden width of the dense MLPs, 0 if there are none."""
        return max(group.intermediate_size for group in self.groups)

    @property
    def attention(self) -> Mixer:
        """The attention of the first layers that keep a KV cache, or the first of any kind."""
        mixers = list(self.attention_layers)
        return next((one for one in mixers if one.kept != 0), mixers[0])

    @property
    def attention_layers(self) -> dict[Mixer, int]:
        """Each attention that occurs, and how many layers have it."""
        layers: dict[Mixer, int] = {}
        for group in self.groups:
            if group.attention is not None:
                layers[group.attention] = layers.get(group.attention, 0) + group.layers
        return layers

    @property
    def window(self) -> int | None:
        """The shortest window of its attention, None if all of it is unlimited."""
        windows = [mixer.window for mixer in self.attention_layers if mixer.window]
        return min(windows, default=None)

    @property
    def chunk(self) -> int | None:
        """The chunk within which some layers attend, None if none do."""
        kinds = self.attention_layers
        return next((one.window for one in kinds if one.kind == CHUNKED_ATTENTION), None)

    @property
    def mlp_matrices(self) -> int:
        """Matrices of a dense MLP: gate, up and down, or without a gate up and down."""
        return 3 if self.gated_mlp else 2

    @property
    def weight_format(self) -> WeightFormat:
        """The format of most weights."""
        by_format: dict[WeightFormat, int] = {}
        for form, parameters in self._weights(visited=False):
            by_format[form] = by_format.get(form, 0) + parameters
        return max(by_format, key=lambda form: by_format[form])

    @property
    def weight_formats(self) -> tuple[WeightFormat, ...]:
        """The formats that occur, those of routed experts last."""
        return tuple(dict.fromkeys(form for form, _ in self._weights(visited=False)))

    @property
    def visited_weights(self) -> dict[WeightFormat, int]:
        """Weights of the layers that one token visits, by format."""
        by_format: dict[WeightFormat, int] = {}
        for form, parameters in self._weights(visited=True):
            by_format[form] = by_format.get(form, 0) + parameters
        return by_format

    def _weights(self, visited: bool) -> list[tuple[WeightFormat, int]]:
        """Formats and how many weights have them: all, or those that one token visits."""
        found = [
            (linear.form, group.layers * linear.parameters)
            for group in self.groups
            for linear in group.linears
        ]
        for group in self.groups:
            if group.experts:
                count = group.experts.per_token if visited else group.experts.count
                found.append((group.experts.form, count * self._expert(group)))
        return found

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding and of lm_head, counted once where they are tied."""
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @property
    def norm_parameters(self) -> int:
        """Weights of the norms."""
        return sum(group.layers * group.norms for group in self.groups) + self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights."""
        routed = sum(self._expert(one) * one.experts.count for one in self.groups if one.experts)
        return self._always_active + routed + self.vision_parameters

    @property
    def active_parameters(self) -> int:
        """Weights that one token visits."""
        some = (self._expert(one) * one.experts.per_token for one in self.groups if one.experts)
        return self._always_active + sum(some)

    def weight_bytes(
        self,
        tp: int,
        dp: int = 1,
        ep: int = 1,
        pp: int = 1,
        multiples: tuple[int, int] = (1, 1),
    ) -> float:
        """Bytes of weights on the fullest GPU.

        Heads may be replicated, routers, norms and the table of rotary embeddings are, an encoder
        of images is where its family says so, and all else is shared. Of a pipeline the first
        stage has the embedding and the last lm_head.

        Args:
            tp: GPUs that share every layer but routed experts.
            dp: Copies of those layers, between which experts are shared.
            ep: GPUs over which experts are spread whole.
            pp: Stages of layers.
            multiples: What the hidden size and the width of experts are padded to a multiple of, in
                formats whose kernels pad them.
        """
        vision = self.vision_parameters * (tp if self.vision_is_replicated else 1)
        embeddings = self.embedding_parameters
        if pp > 1:
            embeddings = self.vocab_size * self.hidden_size
        total = (embeddings + vision) * BYTES_16_BIT / tp
        total += (self.norm_parameters + self._rotary_numbers) * BYTES_16_BIT
        layers = 0.0
        for group in self.groups:
            for linear in group.linears:
                columns, rows = linear.on_gpu(tp)
                layers += group.layers * columns * rows * linear.form.bytes_per_weight
            if group.experts:
                own = self._experts_bytes(group.experts, tp * dp // ep, multiples) / ep
                layers += group.layers * own
        return total + layers * self.fullest_stage(pp)

    def fullest_stage(self, pp: int) -> float:
        """Share of the layers in the stage of a pipeline that has most of them.

        Args:
            pp: Stages.
        """
        return math.ceil(self.layers / pp) / self.layers

    def _experts_bytes(self, experts: Experts, tp: int, multiples: tuple[int, int]) -> float:
        """Bytes of a layer's routed experts, each shared by some GPUs, as kernels pad them."""
        form, hidden = experts.form, float(experts.hidden_size or self.hidden_size)
        width = experts.intermediate_size / tp
        if form.is_padded:
            hidden, width = padded((hidden, width), multiples)
        return experts.count * experts.matrices * hidden * width * form.bytes_per_weight

    def kv_bytes_per_token(self, tp: int, kv_bytes: float) -> float:
        """Bytes of KV cache that a token takes on each of ``tp`` GPUs, windows apart.

        Args:
            tp: GPUs that share every layer.
            kv_bytes: Bytes of an element of the cache.
        """
        layers = self.attention_layers.items()
        return sum(count * mixer.token_bytes(tp, kv_bytes) for mixer, count in layers)

    def _expert(self, group: LayerGroup) -> int:
        """Weights of one routed expert in the layers of a group."""
        experts = group.experts
        if experts is None:
            return 0
        width = (experts.hidden_size or self.hidden_size) * experts.intermediate_size
        return group.layers * experts.matrices * width

    @property
    def _rotary_numbers(self) -> int:
        """Cosines and sines of every position, which an engine keeps once."""
        return max(
            (self.max_position * mixer.rotated for mixer in self.attention_layers), default=0
        )

    @staticmethod
    def _has_mlp(group: LayerGroup) -> bool:
        return group.experts is not None or group.intermediate_size > 0

    @property
    def _always_active(self) -> int:
        linear = sum(one.layers * each.parameters for one in self.groups for each in one.linears)
        return linear + self.embedding_parameters + self.norm_parameters
