"""What a server takes of a load: requests that fit its context length and its KV cache."""

from __future__ import annotations

from dataclasses import replace

from physim.errors import InputError
from physim.inputs.lengths import Lengths, lengths
from physim.inputs.load import Load
from physim.service.server import Server

# Share of the prompts that may be too long for the engine, beyond which a load is refused.
_FEW_REFUSED = 0.05


def load_on(server: Server, load: Load) -> tuple[Load, list[str]]:
    """A load as a server takes it: requests end at max_model_len.

    Args:
        server: The server.
        load: The load.

    Returns:
        The load, and what was made shorter or changes nothing, one line each.

    Raises:
        InputError: A request of mean length, or some prompts, could never run.
    """
    _check_fits(server, load)
    if load.conversing:
        return _with_turns(server, load)
    most, inputs = server.sizes.max_model_len, load.input_tokens
    lines = []
    if load.prefixes > 1 and not load.cached_tokens:
        lines += ["prefixes change nothing: no prompt tokens are cached"]
    if isinstance(inputs, Lengths):
        refused = inputs.share_beyond(most - 1)
        longer = f"{refused:.2%} of the prompts are longer than max_model_len {most} allows"
        recorded = load.lengths is not None and load.lengths.recorded
        if refused > _FEW_REFUSED or (refused and recorded):
            remedy = "shorten them or raise max_model_len"
            raise InputError("input", f"{longer}, and engines refuse them", remedy)
        if refused:
            load = _with_prompts_below(most, load)
            lines += [f"{longer}: engines refuse them, and shorter ones are taken in their place"]
    if load.lengths is not None:
        joint = load.lengths
        cut = joint.share_beyond(most)
        ended = load.with_lengths(joint.up_to(most)) if cut else load
    elif isinstance(load.output_tokens, Lengths):
        outputs, left = load.output_tokens, most - load.mean_input
        cut = outputs.share_beyond(left)
        ended = replace(load, output_tokens=outputs.up_to(left)) if cut else load
    else:
        return load, lines
    if cut:
        lines += [f"{cut:.2%} of the outputs end early, where requests reach max_model_len {most}"]
    return ended, lines


def _with_prompts_below(tokens: int, load: Load) -> Load:
    if load.lengths is not None:
        return load.with_lengths(load.lengths.below(tokens))
    return replace(load, input_tokens=lengths(load.input_tokens).below(tokens))


def _with_turns(server: Server, load: Load) -> tuple[Load, list[str]]:
    """Conversations that end where their mean turn would be too long; see `load_on`."""
    most = min(server.sizes.max_model_len, server.kv.tokens)
    each = lengths(load.input_tokens).mean - load.cached_tokens + load.mean_output
    fitting = float((most - load.cached_tokens) // each)
    turns = lengths(load.turns)
    cut = turns.share_beyond(fitting)
    if not cut:
        return load, []
    line = (
        f"{cut:.2%} of the conversations start afresh after {fitting:g} turns, where they "
        f"reach {most} tokens"
    )
    return replace(load, turns=fitting if turns.alike else turns.up_to(fitting)), [line]


def _check_fits(server: Server, load: Load) -> None:
    # Of conversations the first turn: they end where a later one would be too long.
    length = lengths(load.input_tokens).mean + load.mean_output
    longest = server.sizes.max_model_len
    if length > longest:
        raise InputError(
            "input and output",
            f"{length:g} tokens exceed max_model_len {longest}",
            "shorten them or raise max_model_len",
        )
    if length > server.kv.tokens:
        raise InputError(
            "input and output",
            f"{length:g} tokens exceed the KV cache of {server.kv.tokens} tokens",
            "shorten them, raise tp, or take a larger GPU",
        )
