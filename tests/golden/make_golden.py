#!/usr/bin/env python3
"""Makes the golden records: a small random model and the logits transformers computes with it.

  scripts/env --extra reference python3 tests/golden/make_golden.py

transformers' Qwen3_5MoeForCausalLM is the reference of the architecture. Each record is a model
small enough to keep in the repository:

  NAME.gguf        the weights in F32, written by llama.cpp's own converter
  NAME.tokens      the token ids that were evaluated
  NAME.logits.f32  their logits, little-endian float32 [tokens, vocab]

Needed only when a record is added: tests compare with the recorded files. Repeating it gives the
same weights and, up to rounding, the same logits.
"""

import logging
import math
import os
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))
sys.path.insert(1, "/usr/share/llama.cpp/llama.cpp-tools")  # Debian's place for the converter
import gguf  # noqa: E402
import qwen35moe_model  # noqa: E402
from conversion.qwen import Qwen3_5MoeTextModel  # noqa: E402

VOCAB = 272
TOKENS = 80  # more than the 64 that transformers evaluates at a time in a DeltaNet layer

# What the records have in common, and what each has of its own.
COMMON = dict(vocab_size=VOCAB, hidden_size=64, moe_intermediate_size=32,
              shared_expert_intermediate_size=32, num_experts=8, num_experts_per_tok=2,
              linear_key_head_dim=16, linear_value_head_dim=16, max_position_embeddings=512,
              rms_norm_eps=1e-6)
RECORDS = {
    # Two value heads per key head, two query heads per key/value head.
    "grouped_heads": dict(num_hidden_layers=4, full_attention_interval=4, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=32, linear_num_key_heads=2,
                          linear_num_value_heads=4, partial_rotary_factor=0.25,
                          mrope_section=[2, 1, 1], tie_word_embeddings=False),
    # Tied embeddings, as many value as key heads, one key/value head, half of a head rotated.
    "tied_interval_2": dict(num_hidden_layers=4, full_attention_interval=2, num_attention_heads=2,
                            num_key_value_heads=1, head_dim=32, linear_num_key_heads=4,
                            linear_num_value_heads=4, partial_rotary_factor=0.5,
                            mrope_section=[3, 3, 2], tie_word_embeddings=True),
}


def configuration(own: dict) -> Qwen3_5MoeTextConfig:
    own = dict(own)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True,
            "partial_rotary_factor": own["partial_rotary_factor"],
            "mrope_section": own.pop("mrope_section")}
    return Qwen3_5MoeTextConfig(**COMMON, **own, rope_parameters=rope,
                                architectures=["Qwen3_5MoeForCausalLM"])


def draw_weights(model: torch.nn.Module, seed: int) -> None:
    """Weights with which hidden rows stay O(1), every part matters and heads forget slowly."""
    random = torch.Generator().manual_seed(seed)

    def normal(tensor, deviation, mean=0.0):
        tensor.copy_(torch.randn(tensor.shape, generator=random) * deviation + mean)

    def uniform(shape, low, high):
        return torch.rand(shape, generator=random) * (high - low) + low

    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("A_log"):
                tensor.copy_(uniform(tensor.shape, 1, 16).log())
            elif name.endswith("dt_bias"):
                tensor.copy_(uniform(tensor.shape, math.log(1e-3), math.log(1e-1)).exp().expm1().log())
            elif name.endswith("linear_attn.norm.weight"):
                normal(tensor, 0.1, 1.0)
            elif name.endswith("norm.weight"):  # transformers adds 1
                normal(tensor, 0.1)
            elif "conv1d" in name:
                normal(tensor, 0.5)
            elif "embed_tokens" in name:
                normal(tensor, 0.2 if model.config.tie_word_embeddings else 1.0)
            else:
                normal(tensor, 1.5 / math.sqrt(tensor.shape[-1]))


class Converter(Qwen3_5MoeTextModel):
    """llama.cpp's converter with our tokenizer: the checkpoint has none."""

    model_arch = gguf.MODEL_ARCH.QWEN35MOE
    no_mtp = True

    def set_vocab(self):
        self.gguf_writer.add_tokenizer_model("gpt2")
        self.gguf_writer.add_tokenizer_pre("qwen35")
        tokens, kinds = qwen35moe_model.vocabulary(VOCAB)
        self.gguf_writer.add_token_list(tokens)
        self.gguf_writer.add_token_types(kinds)
        self.gguf_writer.add_token_merges(["a b"])
        self.gguf_writer.add_eos_token_id(258)
        self.gguf_writer.add_add_bos_token(False)


def make(name: str, own: dict, seed: int) -> None:
    model = Qwen3_5MoeForCausalLM(configuration(own)).eval()
    draw_weights(model, seed)
    random = torch.Generator().manual_seed(seed + 1)
    tokens = torch.randint(0, 256, (1, TOKENS), generator=random)
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[0].to(torch.float32).numpy()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = pathlib.Path(folder) / name
        model.save_pretrained(checkpoint)
        converted = pathlib.Path(folder) / f"{name}.gguf"
        Converter(checkpoint, gguf.LlamaFileType.ALL_F32, converted).write()
        target = HERE / f"{name}.gguf"
        target.write_bytes(converted.read_bytes())
    (HERE / f"{name}.tokens").write_text(" ".join(map(str, tokens[0].tolist())) + "\n")
    logits.astype("<f4").tofile(HERE / f"{name}.logits.f32")
    print(f"{name}: {os.path.getsize(target)} bytes, logits of deviation {np.std(logits):.2f}")


def main() -> None:
    logging.getLogger().setLevel(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    for index, (name, own) in enumerate(RECORDS.items()):
        make(name, own, seed=100 + index)


if __name__ == "__main__":
    main()
