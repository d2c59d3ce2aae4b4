"""A folder with what the BLIS simulator of August (inference-sim/inference-sim) reads.

Two generations of it read different files; the README in the folder says which, and how. A third,
the branch of the step-time studies, reads kernel efficiencies of its own roofline: on physim's its
TTFT and ITL were 19 to 86% off physim's replays (three models at three loads), so there is no such
file.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from physim.engines.engine import engine_named
from physim.inputs.case import Case
from physim.mixers.attention import Attention
from physim.models.lookup import config_path
from physim.prediction.commands import in_shell
from physim.printable import printable
from physim.service.hardware import Hardware
from physim.service.server import GIB
from physim.step.many_batches import total_seconds
from physim.step.model import StepModel
from physim.tables.kernel_profile import KernelProfile, as_yaml, kernel_profile

_BLOCK_TOKENS = 16
_DEFAULTS = "defaults.yaml"
# The steps that whole-step efficiencies are read off: a prompt, and a batch that decodes.
_PROMPT, _BATCH, _CONTEXT = 2048.0, 64.0, 1000.0


def blis_gpu(gpu: Hardware) -> str:
    """BLIS's name of a GPU: H100 for h100_sxm."""
    return gpu.key.partition("_")[0].upper()


def left_out(case: Case) -> dict[str, str]:
    """The files that have no place for a model, with the reason.

    Args:
        case: What is served.
    """
    attention = case.model.attention
    if isinstance(attention, Attention):
        return {}
    return {
        _DEFAULTS: "trained physics computes attention on keys and values of KV heads, and this "
        f"model's is {attention.kind}"
    }


def write_blis(
    folder: Path, case: Case, model: StepModel, coefficients: dict[str, Any]
) -> dict[str, Any]:
    """Writes the folder's files, but for those of `left_out`.

    Args:
        folder: A folder that is there.
        case: What is served.
        model: The step model.
        coefficients: Those of linear models, as `physim.tables.writer` makes them.

    Returns:
        What the metadata is to say of the kernel profile.
    """
    arch, gpu, server = case.model, case.server.gpu, case.server
    name, tp = blis_gpu(gpu), server.parallelism.tp
    engine = engine_named(server.profile.engine)
    # The engine's blocks may be of another size, BLIS's are not.
    blocks = server.kv.tokens // _BLOCK_TOKENS
    profile = kernel_profile(model, server, case.demanded)
    shutil.copyfile(config_path(arch.name), folder / "config.json")
    (folder / "kernel_profile.yaml").write_text(
        as_yaml(profile, arch, name, tp, engine.name, version("physim-llm")), encoding="utf-8"
    )
    _write_json(folder / "hardware_config.json", {name: _hardware(case, model)})
    # BLIS looks models up in lower case.
    quoted, key = json.dumps(arch.name), json.dumps(arch.name.lower())
    alpha = list(coefficients["alpha_us"].values())
    physics = list(coefficients["trained_physics"]["beta"].values())
    blackbox = list(coefficients["blackbox"]["beta"].values())
    if _DEFAULTS not in left_out(case):
        (folder / _DEFAULTS).write_text(
            f"defaults:\n  {key}:\n    GPU: {json.dumps(name)}\n"
            f"    tensor_parallelism: {tp}\n    hf_repo: {quoted}\n"
            "workloads: {}\n"
            f"trained_physics_coefficients:\n  alpha_coeffs: {json.dumps(alpha)}\n"
            f"  beta_coeffs: {json.dumps(physics)}\n"
            f'version: "{version("physim-llm")}"\n',
            encoding="utf-8",
        )
    (folder / "defaults_blackbox.yaml").write_text(
        f"models:\n  - id: {key}\n    GPU: {json.dumps(name)}\n"
        f"    tensor_parallelism: {tp}\n"
        f"    vllm_version: {engine.image.format(server.profile.version)}\n"
        f"    alpha_coeffs: {json.dumps(alpha)}\n    beta_coeffs: {json.dumps(blackbox)}\n"
        f"    total_kv_blocks: {blocks}\n",
        encoding="utf-8",
    )
    (folder / "README.md").write_text(
        _readme(case, profile, coefficients, alpha, blocks), encoding="utf-8"
    )
    return {
        "error_pct": profile.error_pct,
        "cached_tokens": profile.cached_tokens,
        "multipliers": list(profile.multipliers),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _hardware(case: Case, model: StepModel) -> dict[str, float]:
    """The GPU as BLIS's main branch has it."""
    gpu = case.server.gpu
    prompt, decode = (_matrix_efficiency(case, model, kind) for kind in ("prefill", "decode"))
    peaks = {"TFlopsPeak": gpu.peak("bfloat16"), "TFlopsFP8": gpu.peak("fp8")}
    return {
        **{name: peak / 1e12 for name, peak in peaks.items() if peak},
        "BwPeakTBs": gpu.memory_bandwidth / 1e12,
        "mfuPrefill": prompt,
        "mfuDecode": decode,
        "MemoryGiB": round(gpu.memory_bytes / GIB, 2),
    }


def _matrix_efficiency(case: Case, model: StepModel, kind: str) -> float:
    """FLOP of a step's matrix products over its time and the peak."""
    arch = case.model
    if kind == "prefill":
        tokens, step = _PROMPT, model.batch(prefill_requests=1.0, chunk=_PROMPT)
    else:
        tokens, step = _BATCH, model.batch(decode_requests=_BATCH, context=_CONTEXT)
    seconds = float(total_seconds(model, step)[0])
    form = arch.weight_format
    peak = case.server.gpu.peak(form.compute) or dict(case.server.gpu.peak_flops)["bfloat16"]
    flops = 2.0 * tokens * sum(arch.visited_weights.values()) / case.server.parallelism.tp
    return float(f"{flops / (seconds * peak):.4g}")


def _readme(
    case: Case,
    profile: KernelProfile,
    coefficients: dict[str, Any],
    alpha: list[float],
    blocks: int,
) -> str:
    arch, gpu, tp = case.model, blis_gpu(case.server.gpu), case.server.parallelism.tp
    physics, box = coefficients["trained_physics"], coefficients["blackbox"]

    def flag(values: Any) -> str:
        return ",".join(f"{value:.6g}" for value in values)

    sizes = case.server.sizes
    limits_of_main = (
        f"--max-num-seqs {sizes.max_num_seqs} "
        f"--max-num-batched-tokens {sizes.max_num_batched_tokens}"
    )
    limits_of_branches = (
        f"--max-num-running-reqs {sizes.max_num_seqs} "
        f"--max-num-scheduled-tokens {sizes.max_num_batched_tokens}"
    )
    flags = ["--model", arch.name, "--hardware", gpu, "--tp", tp, "--total-kv-blocks", blocks]
    common = in_shell(map(str, flags))
    lacking = left_out(case)
    physics_row = (
        "| `config.json`, `hardware_config.json`, `defaults.yaml` | main, trained physics | "
        f"{physics['error_pct']['mean']}% | {physics['error_pct']['all_steps']:+}% |\n"
    )
    physics_flags = f"""Trained physics (main):

    {limits_of_main} \
--latency-model trained-physics --model-config-folder . --hardware-config hardware_config.json \
--defaults-filepath defaults.yaml --alpha-coeffs {flag(alpha)} --beta-coeffs \
{flag(physics["beta"].values())}

"""
    if _DEFAULTS in lacking:
        physics_row = ""
        physics_flags = "".join(
            f"`{name}` is left out: {why}.\n\n" for name, why in lacking.items()
        )
    return f"""# {printable(arch.name)} on {tp} x {printable(gpu)} for BLIS

Made by physim {version("physim-llm")}; `metadata.json` has the model, the GPU and the engine. The
linear models and the alphas (what a request spends outside of steps) hold for one load alone:
{coefficients["load"]}. Under another load, say with fewer cached tokens, they are far off.

{"".join(f"Note: {line}.{chr(10)}{chr(10)}" for line in coefficients["warnings"])}\
| files | generation of BLIS | mean error of a step | error of the sum |
| --- | --- | --- | --- |
{physics_row}\
| `kernel_profile.yaml` | training, kernel look-up | {profile.error_pct["decode_steps"]}% of \
decode-only steps, {profile.error_pct["mixed_steps"]}% of others | |
| `defaults_blackbox.yaml` | training, blackbox | {box["error_pct"]["mean"]}% | \
{box["error_pct"]["all_steps"]:+}% |

Flags that every run takes:

    {common}

This engine runs at most {sizes.max_num_seqs} requests and \
{sizes.max_num_batched_tokens} tokens in a step. The flags below give BLIS the same limits; \
its main branch names them differently.

{physics_flags}\
Kernel look-up (training). Its tables are for prompts without cached tokens. If a prompt has some,
BLIS subtracts too much attention time; the seventh beta adds it back for prompts of this load
({profile.cached_tokens:g} tokens cached). The table of logits has the time for one request; the
term for requests has what each further one adds:

    {limits_of_branches} \
--latency-model kernel-lookup --kernel-profile kernel_profile.yaml --model-config-folder . \
--hardware-config hardware_config.json --alpha-coeffs {flag(alpha)} --beta-coeffs \
{flag(profile.multipliers)}

Blackbox (training):

    {limits_of_branches} \
--latency-model blackbox --defaults-filepath defaults_blackbox.yaml --alpha-coeffs \
{flag(alpha)} --beta-coeffs {flag(box["beta"].values())}
"""
