"""The demo model: transformers' own qwen3_5_moe, small, with its slow parts made fast for training.

The parameters, their names and what is computed are those of Qwen3_5MoeForCausalLM, so that a
checkpoint loads there as it is. Replaced, by functions that compute the same: the loop over
experts (rows sorted by expert, one product each), the chunked gated delta rule (a triangular solve
instead of a loop over rows) and the causal convolution.
"""

import functools
import math

import torch
import torch.nn.functional as F
import transformers
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as family
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

import vocabulary

transformers.logging.set_verbosity_error()  # that there are no GPU kernels

CONTEXT = 512  # tokens of a training window
_CHUNK = 64    # rows of the delta rule computed at a time


def configuration() -> Qwen3_5MoeTextConfig:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True,
            "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]}
    return Qwen3_5MoeTextConfig(
        vocab_size=vocabulary.SIZE, hidden_size=256, num_hidden_layers=4, full_attention_interval=4,
        num_experts=12, num_experts_per_tok=3, moe_intermediate_size=256,
        shared_expert_intermediate_size=256, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, partial_rotary_factor=0.25, rope_parameters=rope, linear_num_key_heads=4,
        linear_num_value_heads=4, linear_key_head_dim=64, linear_value_head_dim=64,
        max_position_embeddings=4096, rms_norm_eps=1e-6, tie_word_embeddings=False,
        bos_token_id=None, pad_token_id=0, eos_token_id=2, use_cache=False,
        architectures=["Qwen3_5MoeForCausalLM"])


def build(seed: int) -> family.Qwen3_5MoeForCausalLM:
    """The model with fresh weights, fast parts in place."""
    torch.manual_seed(seed)
    model = family.Qwen3_5MoeForCausalLM(configuration())
    _draw(model)
    speed_up(model)
    return model


@torch.no_grad()
def _draw(model: torch.nn.Module) -> None:
    for name, tensor in model.named_parameters():
        if name.endswith("A_log"):
            tensor.uniform_(1, 16).log_()
        elif name.endswith("dt_bias"):  # heads forget within ten to a thousand tokens
            tensor.uniform_(math.log(1e-3), math.log(1e-1)).exp_().expm1_().log_()
        elif name.endswith("linear_attn.norm.weight"):
            tensor.fill_(1)
        elif name.endswith("norm.weight"):  # one is added to it
            tensor.zero_()
        elif "conv1d" in name:
            tensor.uniform_(-0.5, 0.5)
        elif "embed_tokens" in name:
            tensor.normal_()
        elif "lm_head" in name:
            tensor.normal_(std=0.002)
        elif any(part in name for part in ("down_proj", "o_proj", "out_proj")):
            tensor.normal_(std=0.01)  # blocks begin by adding little
        else:
            tensor.normal_(std=0.5 / math.sqrt(tensor.shape[-1]))


def speed_up(model: torch.nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, family.Qwen3_5MoeGatedDeltaNet):
            module.chunk_gated_delta_rule = gated_delta_rule
            module.causal_conv1d_fn = causal_convolution
        elif isinstance(module, family.Qwen3_5MoeSparseMoeBlock):
            module.forward = functools.partial(_mixture, module)


def balance_loss(model: torch.nn.Module) -> torch.Tensor:
    """Mean over layers, after a forward pass; 1 when experts are used evenly, more otherwise."""
    return torch.stack([module.balance for module in model.modules()
                        if isinstance(module, family.Qwen3_5MoeSparseMoeBlock)]).mean()


class _Dispatch(torch.autograd.Function):
    """Rows [n, d] to slots [n * k, d] sorted by expert."""

    @staticmethod
    def forward(ctx, rows, order, inverse, used):
        ctx.save_for_backward(inverse)
        ctx.used = used
        return rows.index_select(0, order // used)

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        slots = grad.index_select(0, inverse)
        return slots.view(-1, ctx.used, grad.shape[1]).sum(1), None, None, None


class _Reorder(torch.autograd.Function):
    """Slots sorted by expert back to the order of rows."""

    @staticmethod
    def forward(ctx, slots, order, inverse):
        ctx.save_for_backward(order)
        return slots.index_select(0, inverse)

    @staticmethod
    def backward(ctx, grad):
        (order,) = ctx.saved_tensors
        return grad.index_select(0, order), None, None


def _mixture(block: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Qwen3_5MoeSparseMoeBlock.forward; leaves the layer's balance in block.balance."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    logits, weights, chosen = block.gate(rows)
    count, used = block.gate.num_experts, block.gate.top_k
    flat = chosen.reshape(-1)
    order = torch.argsort(flat, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel())
    sizes = torch.bincount(flat, minlength=count)

    block.counts = sizes
    block.balance = count * (sizes / flat.numel() * logits.float().softmax(-1).mean(0)).sum()

    pieces = _Dispatch.apply(rows, order, inverse, used).split(sizes.tolist())
    outputs = []
    for piece, gate_up, down in zip(pieces, block.experts.gate_up_proj.unbind(),
                                    block.experts.down_proj.unbind()):
        gate, up = F.linear(piece, gate_up).chunk(2, dim=-1)
        outputs.append(F.linear(F.silu(gate) * up, down))
    slots = _Reorder.apply(torch.cat(outputs), order, inverse).view(-1, used, rows.shape[1])
    routed = (slots * weights.unsqueeze(-1)).sum(1)
    shared = torch.sigmoid(block.shared_expert_gate(rows)) * block.shared_expert(rows)
    return (routed + shared).view(hidden.shape)


class _Convolution(torch.autograd.Function):
    """Causal depthwise convolution of [batch, tokens, channels] with [channels, width]."""

    @staticmethod
    def forward(ctx, values, weight):
        width, tokens = weight.shape[1], values.shape[1]
        padded = F.pad(values, (0, 0, width - 1, 0))
        result = padded[:, width - 1:] * weight[:, width - 1]
        for tap in range(width - 1):
            result.addcmul_(padded[:, tap:tap + tokens], weight[:, tap])
        ctx.save_for_backward(padded, weight)
        return result

    @staticmethod
    def backward(ctx, grad):
        padded, weight = ctx.saved_tensors
        width, tokens = weight.shape[1], grad.shape[1]
        to_values = torch.zeros_like(padded)
        to_weight = torch.empty_like(weight)
        for tap in range(width):
            to_values[:, tap:tap + tokens].addcmul_(grad, weight[:, tap])
            to_weight[:, tap] = (grad * padded[:, tap:tap + tokens]).sum((0, 1))
        return to_values[:, width - 1:], to_weight


def causal_convolution(x, weight, bias=None, activation="silu", seq_idx=None):
    """[batch, channels, tokens], as transformers calls it; bias and seq_idx are None there."""
    return F.silu(_Convolution.apply(x.transpose(1, 2), weight)).transpose(1, 2)


def gated_delta_rule(query, key, value, g, beta, initial_state=None, output_final_state=False,
                     use_qk_l2norm_in_kernel=True, **_):
    """transformers' chunk_gated_delta_rule from an empty state.

    Shapes [batch, tokens, heads, size], g (log decay) and beta [batch, tokens, heads]. Within a
    chunk every row's correction depends on the rows before it through a unit lower triangular
    matrix; it is solved at once. Between chunks a state [size, size] a head is carried.
    """
    assert initial_state is None and not output_final_state and use_qk_l2norm_in_kernel
    batch, tokens, heads, size = value.shape
    query = family.l2norm(query, dim=-1, eps=1e-6) * query.shape[-1] ** -0.5
    key = family.l2norm(key, dim=-1, eps=1e-6)
    padding = -tokens % _CHUNK

    def chunks(x):  # -> [batch, heads, chunks, _CHUNK, ...]
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, padding))
        return x.transpose(1, 2).unflatten(2, (-1, _CHUNK))

    query, key, value, g, beta = map(chunks, (query, key, value, g, beta))
    decay = g.cumsum(-1)
    past = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool).tril()
    between = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(~past, -torch.inf).exp()
    key_beta = key * beta.unsqueeze(-1)
    lower = (key_beta @ key.mT) * between  # its diagonal is ignored: unitriangular
    right = torch.cat([value * beta.unsqueeze(-1), key_beta * decay.exp().unsqueeze(-1)], dim=-1)
    solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    new_value, forgotten = solved.split([size, key.shape[-1]], dim=-1)
    scores = (query @ key.mT) * between
    query = query * decay.exp().unsqueeze(-1)
    last = decay[..., -1:]
    key = key * (last - decay).exp().unsqueeze(-1)
    keep = last.exp().unsqueeze(-1)

    state = value.new_zeros(batch, heads, key.shape[-1], size)
    outputs = []
    for index in range(value.shape[2]):
        correction = new_value[:, :, index] - forgotten[:, :, index] @ state
        outputs.append(query[:, :, index] @ state + scores[:, :, index] @ correction)
        state = state * keep[:, :, index] + key[:, :, index].mT @ correction
    result = torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :tokens]
    return result.transpose(1, 2), None
