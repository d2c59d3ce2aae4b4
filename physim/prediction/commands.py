"""The commands that start a server, as its engine takes them, and put it under a load."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping

from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.deployment import ALL2ALL
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load

# Requests of a load without end.
_PROMPTS = 1000
# From this shape on arrivals after vLLM's gamma distribution are as good as evenly spaced.
_EVEN = 1000.0


def in_shell(words: Iterable[str]) -> str:
    r"""A command on one line, as Bash reads it; what is not printable is ``$'\x1b'``."""
    return " ".join(map(_word, words))


def _word(text: str) -> str:
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_letter, text))}'"


def _letter(letter: str) -> str:
    """A letter between ``$'`` and ``'``."""
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    # In the bytes that a file's name has.
    return "".join(f"\\x{byte:02x}" for byte in letter.encode(errors="surrogateescape"))


def serve_command(case: Case) -> str:
    """The command that starts a case's server, every limit given.

    Raises:
        InputError: The engine has none that is known.
    """
    engine = case.deployment.profile.engine
    if engine not in _SERVE:
        raise InputError("--serve-command", f"is not known of {engine}", "leave it out")
    return _SERVE[engine](case)


def _vllm(case: Case) -> str:
    known, limits = case.deployment, case.deployment.limits
    words = ["vllm", "serve", case.model.name]
    layout = known.parallelism
    words += ["--tensor-parallel-size", str(layout.tp)]
    for flag, degree in (("pipeline", layout.pp), ("data", layout.dp)):
        if degree > 1:
            words += [f"--{flag}-parallel-size", str(degree)]
    if layout.ep > 1:
        words.append("--enable-expert-parallel")
    if known.all2all != ALL2ALL[0]:
        words += ["--all2all-backend", known.all2all]
    for flag, value in (
        ("max-num-seqs", limits.max_num_seqs),
        ("max-num-batched-tokens", limits.max_num_batched_tokens),
        ("max-model-len", limits.max_model_len),
        ("gpu-memory-utilization", f"{known.memory.share:g}"),
        ("block-size", limits.block_size),
    ):
        words += [f"--{flag}", str(value)]
    if known.kv_cache_dtype != case.model.kv_cache_dtype:
        words += ["--kv-cache-dtype", known.kv_cache_dtype]
    words.append("--async-scheduling" if limits.async_scheduling else "--no-async-scheduling")
    return in_shell(words)


def _sglang(case: Case) -> str:
    known, limits = case.deployment, case.deployment.limits
    layout = known.parallelism
    words = ["python", "-m", "sglang.launch_server", "--model-path", case.model.name]
    # Here attention's ranks share the GPUs that tp counts.
    words += ["--tp-size", str(layout.stage_gpus)]
    if layout.dp > 1:
        words += ["--dp-size", str(layout.dp), "--enable-dp-attention"]
    for flag, value in (
        ("ep-size", layout.ep if layout.ep > 1 else None),
        ("pp-size", layout.pp if layout.pp > 1 else None),
        ("max-running-requests", limits.max_num_seqs * layout.dp),
        ("chunked-prefill-size", limits.max_num_batched_tokens * layout.dp),
        ("context-length", limits.max_model_len),
        ("mem-fraction-static", f"{known.memory.share:g}"),
        ("kv-cache-dtype", _other_kv_cache(case, {"fp8": "fp8_e4m3", "bfloat16": "bfloat16"})),
    ):
        words += [] if value is None else [f"--{flag}", str(value)]
    if limits.receive_every > 1:
        words += ["--scheduler-recv-interval", str(limits.receive_every)]
    if not limits.async_scheduling:
        words.append("--disable-overlap-schedule")
    return in_shell(words)


def _trtllm(case: Case) -> str:
    known, limits = case.deployment, case.deployment.limits
    layout = known.parallelism
    words = ["trtllm-serve", case.model.name, "--tp_size", str(layout.stage_gpus)]
    for flag, value in (
        ("ep_size", layout.ep if layout.ep > 1 else None),
        ("pp_size", layout.pp if layout.pp > 1 else None),
        ("max_batch_size", limits.max_num_seqs),
        ("max_num_tokens", limits.max_num_batched_tokens),
        ("max_seq_len", limits.max_model_len),
        ("kv_cache_free_gpu_memory_fraction", f"{known.memory.share:g}"),
        ("kv_cache_dtype", _other_kv_cache(case, {"fp8": "fp8", "bfloat16": "auto"})),
    ):
        words += [] if value is None else [f"--{flag}", str(value)]
    # What has no option of its own is read from a file.
    more = [("enable_attention_dp", layout.dp > 1, True)]
    more.append(("disable_overlap_scheduler", not limits.async_scheduling, True))
    lines = "\\n".join(f"{name}: {str(value).lower()}" for name, said, value in more if said)
    config = f" --extra_llm_api_options <(printf '{lines}\\n')" if lines else ""
    return in_shell(words) + config


def _other_kv_cache(case: Case, names: Mapping[str, str]) -> str | None:
    """What a KV cache is called that is not the checkpoint's; None where it is."""
    asked = case.deployment.kv_cache_dtype
    return None if asked == case.model.kv_cache_dtype else names[asked]


_SERVE: dict[str, Callable[[Case], str]] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}


def bench_command(case: Case) -> str:
    """The ``vllm bench serve`` command of a case's load.

    Raises:
        InputError: There is no such command for the load.
    """
    load = case.demanded
    if load.stages:
        raise InputError("--serve-command", "vllm bench serve knows no stages", "give one rate")
    if load.dispersion is not None:
        problem = "vllm bench serve knows no recorded arrivals"
        raise InputError("--serve-command", problem, "give constant, poisson or gamma")
    for tokens in (load.input_tokens, load.output_tokens):
        if isinstance(tokens, Lengths) and tokens.kind != "fixed":
            raise InputError(
                "--serve-command",
                "vllm bench serve draws no lengths of such a distribution",
                "give a number",
            )
    words = ["vllm", "bench", "serve", "--model", case.model.name]
    words += ["--dataset-name", "random", "--ignore-eos"]
    cached = round(load.cached_tokens)
    for flag, value in (
        ("random-prefix-len", cached or None),
        ("random-input-len", round(load.mean_input) - cached),
        ("random-output-len", round(load.mean_output)),
        ("num-prompts", load.requests or _PROMPTS),
        *_arrivals(load),
    ):
        words += [] if value is None else [f"--{flag}", f"{value:g}"]
    return in_shell(words)


def _arrivals(load: Load) -> list[tuple[str, float]]:
    if load.concurrency is not None:
        return [("max-concurrency", load.concurrency)]
    assert load.rate is not None
    shape = {"constant": _EVEN, "poisson": 1.0, "gamma": load.burstiness}[load.arrival]
    return [("request-rate", load.rate), ("burstiness", shape)]


# Images of engines, of the version that is predicted.
_IMAGES = {
    "vllm": "vllm/vllm-openai:v{}",
    "sglang": "lmsysorg/sglang:v{}",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:{}",
}
_PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000}
_LONGEST_NAME = 63


def manifest_of(case: Case, replicas: int) -> str:
    """A skeleton of a Kubernetes manifest: servers of a case, and a service before them.

    Args:
        case: The case.
        replicas: How many servers.

    Raises:
        InputError: The engine has no command that is known.
    """
    deployment = case.deployment
    engine, version = deployment.profile.engine, deployment.profile.version
    # Releases have three numbers.
    image = _IMAGES[engine].format(version if version.count(".") > 1 else f"{version}.0")
    values = {
        "name": _resource_name(case.model.name),
        "image": image,
        "command": ["/bin/bash", "-c", serve_command(case)],
        "gpus": deployment.parallelism.gpus,
        "replicas": replicas,
        "port": _PORTS[engine],
    }
    # Whatever is JSON is YAML.
    return _MANIFEST.format(**{name: json.dumps(value) for name, value in values.items()})


def _resource_name(model: str) -> str:
    """A name as Kubernetes takes it: up to 63 small letters, digits and dashes, a letter first."""
    name = re.sub(r"[^a-z0-9]+", "-", model.split("/")[-1].lower()).strip("-")
    name = name if name[:1].isalpha() else f"model-{name}"
    return name[:_LONGEST_NAME].strip("-")


_MANIFEST = """\
# A skeleton: say where the weights come from, and which nodes have these GPUs.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {replicas}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      containers:
        - name: server
          image: {image}
          command: {command}
          ports:
            - containerPort: {port}
          resources:
            limits:
              nvidia.com/gpu: {gpus}
          readinessProbe:
            httpGet: {{path: /health, port: {port}}}
          volumeMounts:
            - {{name: memory, mountPath: /dev/shm}}
      volumes:
        - name: memory
          emptyDir: {{medium: Memory}}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector: {{app: {name}}}
  ports:
    - port: 80
      targetPort: {port}
"""
