"""The demo model as a GGUF file: written by llama.cpp's own converter, read back for transformers."""

import logging
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

import network
import vocabulary

sys.path.insert(1, "/usr/share/llama.cpp/llama.cpp-tools")  # Debian's place for the converter
import gguf  # noqa: E402
from conversion.qwen import Qwen3_5MoeTextModel  # noqa: E402

NAME = "expert-split demo"
DESCRIPTION = ("Trained on the King James Bible and the manual of SQLite, both in the public domain; "
               "tools/demo_model makes it.")


class _Converter(Qwen3_5MoeTextModel):
    model_arch = gguf.MODEL_ARCH.QWEN35MOE
    no_mtp = True
    tokenizer: Tokenizer

    def set_vocab(self):
        tokens, merges = vocabulary.tokens_and_merges(self.tokenizer)
        special = {self.tokenizer.token_to_id(token) for token in vocabulary.SPECIAL}
        writer = self.gguf_writer
        writer.add_description(DESCRIPTION)
        writer.add_license("mit")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(vocabulary.PRE_TOKENIZER)
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.CONTROL if index in special else
                                gguf.TokenType.NORMAL for index in range(len(tokens))])
        writer.add_token_merges(merges)
        writer.add_eos_token_id(self.tokenizer.token_to_id(vocabulary.TURN_END))
        writer.add_eot_token_id(self.tokenizer.token_to_id(vocabulary.TURN_END))
        writer.add_pad_token_id(self.tokenizer.token_to_id(vocabulary.END_OF_TEXT))
        writer.add_add_bos_token(False)
        writer.add_chat_template(vocabulary.CHAT_TEMPLATE)


def write(model: Qwen3_5MoeForCausalLM, tokenizer: Tokenizer, quantisation: str,
          path: pathlib.Path) -> None:
    """Writes `path` in llama-quantize's type `quantisation`."""
    logging.getLogger().setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, plain = pathlib.Path(folder) / "checkpoint", pathlib.Path(folder) / "f32.gguf"
        model.save_pretrained(checkpoint)
        converter = _Converter(checkpoint, gguf.LlamaFileType.ALL_F32, plain, model_name=NAME)
        converter.tokenizer = tokenizer
        converter.write()
        done = subprocess.run(["llama-quantize", plain, path, quantisation], capture_output=True,
                              text=True)
        if done.returncode:
            raise RuntimeError(f"llama-quantize failed:\n{done.stdout}{done.stderr}")


# llama.cpp's names of what a layer consists of, in transformers.
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight", "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log", "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight", "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
}
_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
          "output.weight": "lm_head.weight"}


def read(path: pathlib.Path) -> tuple[Qwen3_5MoeForCausalLM, Tokenizer]:
    """The model with the weights that the file's blocks stand for, as transformers computes it."""
    reader = gguf.GGUFReader(path)
    stored = {t.name: torch.from_numpy(np.array(gguf.dequantize(t.data, t.tensor_type)))
              for t in reader.tensors}
    weights = {}
    for name, value in stored.items():
        layer, part = name.removeprefix("blk.").split(".", 1)
        if not name.startswith("blk."):
            target = _NAMES[name]
        elif part == "ffn_gate_exps.weight":
            value = torch.cat([value, stored[f"blk.{layer}.ffn_up_exps.weight"]], dim=1)
            target = f"model.layers.{layer}.mlp.experts.gate_up_proj"
        elif part == "ffn_up_exps.weight":
            continue
        else:
            target = f"model.layers.{layer}.{_LAYER_NAMES[part]}"
        if part == "ssm_a":
            value = (-value).log()
        elif target.endswith("norm.weight") and part != "ssm_norm.weight":
            value = value - 1
        weights[target] = value
    model = Qwen3_5MoeForCausalLM(network.configuration())
    for name, tensor in model.state_dict().items():
        weights[name] = weights[name].reshape(tensor.shape)
    model.load_state_dict(weights)
    fields = {key: reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges")}
    return model.eval(), vocabulary.restore(fields["tokens"], fields["merges"])
