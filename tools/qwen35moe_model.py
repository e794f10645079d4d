"""What a random qwen35moe model consists of: its metadata, its tensors and their distributions.

Names, shapes and conventions are those of llama.cpp's converter: norm weights as they multiply
(the +1 of the checkpoint is applied), ssm_a = -exp(A_log), value head h of a gated DeltaNet layer
pairs with key head h % key_heads, attn_q rows hold [query, gate] per head.

Weights are drawn such that hidden rows stay O(1) through all layers, logits have a spread of a few
units, heads forget within one to a thousand tokens, and experts matter to the logits. Hidden
channel 0 carries a constant in every row (a large value in every token embedding): the router uses
it as a bias that makes experts unevenly popular, the output matrix to prefer printable ASCII.
"""

import math
from dataclasses import dataclass, field
from typing import Callable, Iterator

import numpy as np
from gguf import GGMLQuantizationType as Type

import random_tensor
from gguf_output import ARRAY, BOOL, FLOAT32, INT32, STRING, UINT32, TensorEntry

ARCHITECTURE = "qwen35moe"
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


@dataclass
class Shape:
    """Dimensions; all counts, none derived from another."""
    layers: int
    embd: int
    experts: int
    experts_used: int
    ff: int
    shared_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    ssm_key_heads: int
    ssm_value_heads: int
    ssm_state: int
    vocab: int
    ctx: int
    interval: int = 4  # every interval-th layer has full attention
    nextn: int = 0     # multi-token prediction layers behind the others
    conv_kernel: int = 4

    @property
    def key_dim(self) -> int:
        return self.ssm_key_heads * self.ssm_state

    @property
    def value_dim(self) -> int:
        return self.ssm_value_heads * self.ssm_state

    def is_attention(self, layer: int) -> bool:
        return layer >= self.layers or (layer + 1) % self.interval == 0


@dataclass
class Options:
    dense_type: Type
    expert_type: Type
    embd_type: Type
    seed: int = 0
    skew: float = 0.0
    fused: bool = False
    tied: bool = False
    biases: bool = False
    scales: bool = False
    dequantized: bool = False

    @property
    def embedding_deviation(self) -> float:
        # Small when tied: a row's own token must not dominate its logits.
        return 0.1 if self.tied else 0.5

    @property
    def constant(self) -> float:
        """Channel 0 of every token embedding."""
        return 1.0 if self.tied else 3.0


def byte_tokens() -> list[str]:
    """The 256 single-byte tokens of GPT-2's byte-level BPE, in byte order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 256, 257, 258
MIN_VOCAB = 256 + len(SPECIAL_TOKENS)
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


def vocabulary(size: int) -> tuple[list[str], list[int]]:
    """Texts and types of `size` tokens: bytes, special tokens, padding."""
    pads = size - MIN_VOCAB
    tokens = byte_tokens() + SPECIAL_TOKENS + [f"[PAD{MIN_VOCAB + i}]" for i in range(pads)]
    return tokens, [_NORMAL] * 256 + [_CONTROL] * len(SPECIAL_TOKENS) + [_UNUSED] * pads


def metadata(shape: Shape, options: Options, name: str, file_type: int) -> dict:
    tokens, kinds = vocabulary(shape.vocab)
    half = shape.rope_dim // 2
    first = -(-half // 3)
    sections = [first, first, half - 2 * first, 0] if half >= 3 else [half, 0, 0, 0]
    model = {
        "context_length": (UINT32, shape.ctx),
        "embedding_length": (UINT32, shape.embd),
        "block_count": (UINT32, shape.layers + shape.nextn),
        "attention.head_count": (UINT32, shape.heads),
        "attention.head_count_kv": (UINT32, shape.kv_heads),
        "attention.key_length": (UINT32, shape.head_dim),
        "attention.value_length": (UINT32, shape.head_dim),
        "attention.layer_norm_rms_epsilon": (FLOAT32, 1e-6),
        "rope.freq_base": (FLOAT32, 1e7),
        "rope.dimension_count": (UINT32, shape.rope_dim),
        "rope.dimension_sections": (ARRAY, (INT32, sections)),
        "expert_count": (UINT32, shape.experts),
        "expert_used_count": (UINT32, shape.experts_used),
        "expert_feed_forward_length": (UINT32, shape.ff),
        "expert_shared_feed_forward_length": (UINT32, shape.shared_ff),
        "ssm.conv_kernel": (UINT32, shape.conv_kernel),
        "ssm.state_size": (UINT32, shape.ssm_state),
        "ssm.group_count": (UINT32, shape.ssm_key_heads),
        "ssm.time_step_rank": (UINT32, shape.ssm_value_heads),
        "ssm.inner_size": (UINT32, shape.value_dim),
        "full_attention_interval": (UINT32, shape.interval),
    }
    if shape.nextn:
        model["nextn_predict_layers"] = (UINT32, shape.nextn)
    return {
        "general.architecture": (STRING, ARCHITECTURE),
        "general.type": (STRING, "model"),
        "general.name": (STRING, name),
        "general.quantization_version": (UINT32, 2),
        "general.file_type": (UINT32, file_type),
        **{f"{ARCHITECTURE}.{key}": value for key, value in model.items()},
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "qwen35"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (INT32, kinds)),
        "tokenizer.ggml.merges": (ARRAY, (STRING, [])),
        "tokenizer.ggml.eos_token_id": (UINT32, 258),
        "tokenizer.ggml.padding_token_id": (UINT32, 256),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
        "tokenizer.chat_template": (STRING, _CHAT_TEMPLATE),
    }


class RowsError(ValueError):
    """A tensor's rows cannot be cut into blocks of its type."""


@dataclass
class _Builder:
    shape: Shape
    options: Options
    entries: list[TensorEntry] = field(default_factory=list)

    def random(self, name: str, dims: tuple[int, ...], kind: Type, deviation: float,
               mean: float = 0.0, patch: Callable | None = None) -> None:
        """A tensor of normally distributed weights; dims in ggml order."""
        width, rows = dims[0], math.prod(dims[1:])
        block = random_tensor.gguf.GGML_QUANT_SIZES[kind][0]
        if width % block:
            raise RowsError(f"{name}: rows of {width} weights cannot be {kind.name}, whose blocks "
                            f"have {block}; choose other dimensions or another type")
        plain = self.options.dequantized
        stored = Type.F32 if plain else kind
        if not random_tensor.holds_values(kind):
            patch = None

        def data() -> Iterator[bytes]:
            return random_tensor.stream(kind, rows, width, self.options.seed, name, deviation,
                                        mean, patch, plain)
        self.entries.append(TensorEntry(name, dims, int(stored),
                                        rows * random_tensor.row_bytes(stored, width), data))

    def values(self, name: str, dims: tuple[int, ...],
               make: Callable[[np.random.Generator], np.ndarray]) -> None:
        """An F32 tensor of values with another distribution."""
        def data() -> Iterator[bytes]:
            drawn = make(random_tensor.generator(self.options.seed, name))
            yield np.ascontiguousarray(drawn, np.float32).tobytes()
        self.entries.append(TensorEntry(name, dims, int(Type.F32), 4 * math.prod(dims), data))

    def norm(self, name: str, size: int, mean: float = 1.0) -> None:
        self.random(f"{name}.weight", (size,), Type.F32, 0.1 * mean, mean)

    def matrix(self, name: str, width: int, rows: int, gain: float = 1.0) -> None:
        """[rows, width]: maps rows of deviation 1 to rows of deviation `gain`."""
        self.random(f"{name}.weight", (width, rows), self.options.dense_type,
                    gain / math.sqrt(width))
        self.scale(name, 1)

    def stack(self, name: str, width: int, rows: int, gain: float = 1.0) -> None:
        self.random(f"{name}.weight", (width, rows, self.shape.experts), self.options.expert_type,
                    gain / math.sqrt(width))

    def scale(self, name: str, count: int) -> None:
        if self.options.scales:
            for suffix in ("scale", "input_scale"):
                self.values(f"{name}.{suffix}", (count,), lambda rng: rng.uniform(0.7, 1.3, count))


_SILU = 0.6  # deviation of silu(z), and of silu(z) * u, for z and u of deviation 1


def _write_gain(shape: Shape) -> float:
    # Deviation of what one block adds to the residual stream; all together about 1.5.
    return 1.5 / math.sqrt(2 * shape.layers)


def _add_embeddings(build: _Builder) -> None:
    shape, options = build.shape, build.options

    def constant(values: np.ndarray, first: int) -> None:
        values[:, 0] = options.constant

    def prefer_printable(values: np.ndarray, first: int) -> None:
        for row in range(first, min(first + len(values), shape.vocab)):
            values[row - first, 0] = 1.25 if 32 <= row < 127 else 0.0 if row < 256 else -1.25

    build.random("token_embd.weight", (shape.embd, shape.vocab), options.embd_type,
                 options.embedding_deviation, patch=constant)
    # With tied weights the embeddings are small, so the output norm makes up for it.
    build.norm("output_norm", shape.embd, 20 / math.sqrt(shape.embd) if options.tied else 1.0)
    if not options.tied:
        build.random("output.weight", (shape.embd, shape.vocab), options.embd_type,
                     2 / math.sqrt(shape.embd), patch=prefer_printable)


def _add_attention(build: _Builder, prefix: str) -> None:
    shape = build.shape
    inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for part, rows in (("q", 2 * inner), ("k", kv), ("v", kv)):
        build.matrix(f"{prefix}attn_{part}", shape.embd, rows)
        if build.options.biases:
            build.random(f"{prefix}attn_{part}.bias", (rows,), Type.F32, 0.5)
    build.norm(f"{prefix}attn_q_norm", shape.head_dim, 1.5)
    build.norm(f"{prefix}attn_k_norm", shape.head_dim, 1.5)
    build.matrix(f"{prefix}attn_output", inner, shape.embd, _write_gain(shape) / 0.25)


def _add_delta_net(build: _Builder, prefix: str) -> None:
    shape = build.shape
    heads, channels = shape.ssm_value_heads, 2 * shape.key_dim + shape.value_dim

    def time_step_bias(rng: np.random.Generator) -> np.ndarray:
        steps = np.exp(rng.uniform(math.log(1e-3), math.log(1e-1), heads))
        return np.log(np.expm1(steps))  # softplus of it is the step

    build.matrix(f"{prefix}attn_qkv", shape.embd, channels)
    build.matrix(f"{prefix}attn_gate", shape.embd, shape.value_dim)
    build.random(f"{prefix}ssm_conv1d.weight", (shape.conv_kernel, channels), Type.F32, 0.5)
    build.values(f"{prefix}ssm_dt.bias", (heads,), time_step_bias)
    build.values(f"{prefix}ssm_a", (heads,), lambda rng: -rng.uniform(1, 16, heads))
    build.matrix(f"{prefix}ssm_beta", shape.embd, heads)
    build.matrix(f"{prefix}ssm_alpha", shape.embd, heads, 0.5)
    build.norm(f"{prefix}ssm_norm", shape.ssm_state)
    build.matrix(f"{prefix}ssm_out", shape.value_dim, shape.embd, _write_gain(shape) / _SILU)


def _popularity(shape: Shape, options: Options, layer: int) -> Callable:
    """Sets the router's column 0 to what makes expert popularity fall about like rank^-skew."""
    depth = min(layer / shape.layers, 1.0)
    size = math.sqrt(options.embedding_deviation**2 + options.constant**2 / shape.embd +
                     2.25 * (depth + 0.5 / shape.layers))
    ranks = random_tensor.generator(options.seed, "popularity", layer).permutation(shape.experts)
    # 1.3: the rows' own logits are noisier than those of a softmax that would need 1.
    bias = -1.3 * options.skew * np.log(ranks + 1.0) * size / options.constant
    bias -= bias.mean()

    def patch(values: np.ndarray, first: int) -> None:
        values[:, 0] = bias[first:first + len(values)]
    return patch


def _add_experts(build: _Builder, prefix: str, layer: int) -> None:
    shape, write = build.shape, 0.7 * _write_gain(build.shape)
    build.random(f"{prefix}ffn_gate_inp.weight", (shape.embd, shape.experts), Type.F32,
                 1.5 / math.sqrt(shape.embd), patch=_popularity(shape, build.options, layer))
    if build.options.fused:
        build.stack(f"{prefix}ffn_gate_up_exps", shape.embd, 2 * shape.ff)
    else:
        build.stack(f"{prefix}ffn_gate_exps", shape.embd, shape.ff)
        build.scale(f"{prefix}ffn_gate_exps", shape.experts)
        build.stack(f"{prefix}ffn_up_exps", shape.embd, shape.ff)
        build.scale(f"{prefix}ffn_up_exps", shape.experts)
    build.stack(f"{prefix}ffn_down_exps", shape.ff, shape.embd,
                write * math.sqrt(shape.experts_used) / _SILU)
    build.scale(f"{prefix}ffn_down_exps", shape.experts)
    build.random(f"{prefix}ffn_gate_inp_shexp.weight", (shape.embd,), Type.F32,
                 1 / math.sqrt(shape.embd))
    build.matrix(f"{prefix}ffn_gate_shexp", shape.embd, shape.shared_ff)
    build.matrix(f"{prefix}ffn_up_shexp", shape.embd, shape.shared_ff)
    build.matrix(f"{prefix}ffn_down_shexp", shape.shared_ff, shape.embd, write / 0.5 / _SILU)


def _add_nextn(build: _Builder, prefix: str) -> None:
    embd = build.shape.embd
    build.matrix(f"{prefix}nextn.eh_proj", 2 * embd, embd)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        build.norm(f"{prefix}nextn.{name}", embd)


def tensors(shape: Shape, options: Options) -> list[TensorEntry]:
    """Every tensor, in file order. Raises RowsError."""
    build = _Builder(shape, options)
    _add_embeddings(build)
    for layer in range(shape.layers + shape.nextn):
        prefix = f"blk.{layer}."
        build.norm(f"{prefix}attn_norm", shape.embd)
        if shape.is_attention(layer):
            _add_attention(build, prefix)
        else:
            _add_delta_net(build, prefix)
        build.norm(f"{prefix}post_attention_norm", shape.embd)
        _add_experts(build, prefix, layer)
        if layer >= shape.layers:
            _add_nextn(build, prefix)
    return build.entries
