"""The commands that start a server, as its engine takes them, and put it under a load."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping

from physim.engines.engine import Launch, engine_named
from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load
from physim.inputs.popularity import UNIFORM
from physim.models.lookup import checkpoint_of
from physim.service.server import Server

# Requests of a load without end.
_PROMPTS = 1000
# The load generator, which takes any server.
_BENCH = shlex.split("vllm bench serve")
# What times steps (vllm/benchmarks/forward).
_FORWARD = shlex.split("vllm bench forward")
# From this shape on arrivals after a gamma distribution are as good as evenly spaced.
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


def serve_commands(case: Case) -> dict[str, str]:
    """The commands that start a server of each pool of a case, by name.

    Args:
        case: The case, of one server or of several.
    """
    pools = case.service.pools
    if len(pools) == 1:
        return {"serve_command": serve_command(case.with_server(pools[0].server))}
    return {
        f"{phase}_command": serve_command(case.with_server(pool.server), phase)
        for pool in pools
        for phase in pool.phases
    }


def serve_command(case: Case, phase: str | None = None) -> str:
    """The command that starts a case's server, every limit given.

    Args:
        case: The case.
        phase: What requests do there, of `physim.service.phases.PHASES`; None for both.
    """
    server, sizes = case.server, case.server.sizes
    is_default = server.kv_cache_dtype == case.model.kv_cache_dtype
    found = engine_named(server.profile.engine).launch(
        Launch(
            model=checkpoint_of(case.model.name)[0],
            parallelism=server.parallelism,
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            max_model_len=sizes.max_model_len,
            gpu_memory_utilization=server.memory.share,
            block_size=server.kv.block_size,
            kv_cache_dtype=None if is_default else server.kv_cache_dtype,
            async_scheduling=server.policy.async_scheduling,
            all2all=server.all2all,
            receive_every=server.policy.receive_every,
            stream_interval=server.stream_interval,
            draft=server.draft.method if server.draft else None,
            draft_tokens=server.draft_tokens,
            draft_model=server.draft.named if server.draft else None,
            captured_tokens=server.captured_tokens,
            kv_host_bytes=server.lower_bytes(server.kv.host),
            kv_disk_bytes=server.lower_bytes(server.kv.disk),
            phase=phase,
            quantization=server.model.quantized_to or None,
            mixed_chunk=phase is None
            and server.profile.prompts_apart
            and not server.policy.prompts_apart,
        )
    )
    command = in_shell(found.words)
    if found.file_lines:
        lines = "\\n".join(found.file_lines)
        command += f" {found.file_option} <(printf '{lines}\\n')"
    return command


def missing_for(case: Case) -> str:
    """What the command of a case's server lacks to start it; empty if physim sees nothing.

    Args:
        case: The case.
    """
    return checkpoint_of(case.model.name)[1]


def forward_command(server: Server, batches: Mapping[str, str]) -> str:
    """The ``vllm bench forward`` command that times batches, which needs no weights of the model.

    Args:
        server: The server.
        batches: Each as the command has it, such as ``32*1@2048``: 32 requests that compute a token
            each, after which 2,048 are in the KV cache of each; by name.
    """
    layout = server.parallelism
    words = [*_FORWARD, "--model", checkpoint_of(server.model.name)[0], "--load-format", "dummy"]
    words += ["--tensor-parallel-size", str(layout.tp)]
    if layout.ep > 1:
        words.append("--enable-expert-parallel")
    if server.kv_cache_dtype != server.model.kv_cache_dtype:
        words += ["--kv-cache-dtype", server.kv_cache_dtype]
    words += ["--max-num-seqs", str(server.sizes.max_num_seqs)]
    words += ["--max-num-batched-tokens", str(server.sizes.max_num_batched_tokens)]
    # Lengths as they are asked for, where half is spread by default.
    words += ["--kv-len-jitter", "0"]
    for name, text in batches.items():
        words += ["--case", f"{name}={text}"]
    return in_shell(words)


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
    load.refuse_turns("command of vllm bench serve")
    if load.think_s:
        problem = "vllm bench serve knows no think times"
        raise InputError("--serve-command", problem, "leave out --think")
    for tokens in (load.input_tokens, load.output_tokens):
        if isinstance(tokens, Lengths) and tokens.kind != "fixed":
            raise InputError(
                "--serve-command",
                "vllm bench serve draws no lengths of such a distribution",
                "give a number",
            )
    words = [*_BENCH, "--model", checkpoint_of(case.model.name)[0]]
    dataset, requests = _requests(load)
    words += ["--dataset-name", dataset, "--ignore-eos"]
    for flag, value in (*requests, ("num-prompts", load.requests or _PROMPTS), *_arrivals(load)):
        words += [] if value is None else [f"--{flag}", f"{value:g}"]
    return in_shell(words)


def _requests(load: Load) -> tuple[str, list[tuple[str, float | None]]]:
    """The dataset of a load and its flags.

    Raises:
        InputError: Requests have one of several prefixes, but not all of these as often.
    """
    cached = round(load.cached_tokens)
    new, outputs = round(load.mean_input) - cached, round(load.mean_output)
    if load.prefixes == 1 or not cached:
        return "random", [
            ("random-prefix-len", cached or None),
            ("random-input-len", new),
            ("random-output-len", outputs),
        ]
    if load.popularity != UNIFORM:
        problem = f"vllm bench serve draws prefixes by chance, all as often, not {load.popularity}"
        raise InputError("--serve-command", problem, f"give --popularity {UNIFORM}")
    # vLLM, benchmarks/datasets: PrefixRepetitionRandomDataset, whose requests are shuffled.
    flags = {"prefix-len": cached, "suffix-len": new, "output-len": outputs}
    flags["num-prefixes"] = load.prefixes
    return "prefix_repetition", [(f"prefix-repetition-{one}", own) for one, own in flags.items()]


def _arrivals(load: Load) -> list[tuple[str, float]]:
    if load.concurrency is not None:
        return [("max-concurrency", load.concurrency)]
    assert load.rate is not None
    shape = {"constant": _EVEN, "poisson": 1.0, "gamma": load.burstiness}[load.arrival]
    return [("request-rate", load.rate), ("burstiness", shape)]


_LONGEST_NAME = 63


def manifest_of(case: Case, replicas: int) -> str:
    """A skeleton of a Kubernetes manifest: servers of a case, and a service before them.

    Args:
        case: The case.
        replicas: How many servers.

    Raises:
        InputError: The engine has no command that is known.
    """
    server = case.server
    engine, version = engine_named(server.profile.engine), server.profile.version
    # Releases have three numbers.
    release = version if version.count(".") > 1 else f"{version}.0"
    values = {
        "name": resource_name(case.model.name),
        "image": engine.image_for(release, server.gpu.key, server.gpu.maker),
        "command": ["/bin/bash", "-c", serve_command(case)],
        "gpus": server.parallelism.gpus,
        "replicas": replicas,
        "port": engine.port,
    }
    # Whatever is JSON is YAML.
    resource = f"{server.gpu.maker}.com/gpu"
    told = {name: json.dumps(value) for name, value in values.items()}
    return _MANIFEST.format(resource=resource, **told)


def resource_name(model: str) -> str:
    """A name as Kubernetes takes it: up to 63 small letters, digits and dashes, a letter first.

    Args:
        model: The model's name.
    """
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
              {resource}: {gpus}
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
