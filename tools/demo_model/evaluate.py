#!/usr/bin/env python3
"""How well the demo model knows its texts: bits per byte on the held-out ones, beside xz.

  scripts/env --extra reference python3 tools/demo_model/evaluate.py [models/demo.gguf]

Reads the file that is shipped (its quantised weights, computed by transformers) and the
heldout-DOMAIN.txt beside it. Every byte of a text counts: a window of tokens is scored by what
comes before it, at least half a window. xz -9 compresses the same text alone. The table of
routing says how far the two domains' use of the experts is apart, as total variation distance:
0 is the same use, 1 none in common.
"""

import argparse
import json
import lzma
import math
import pathlib

import torch
import torch.nn.functional as F

import model_file
import network
import vocabulary
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock


@torch.no_grad()
def score(model, tokens: list[int], context: int) -> tuple[float, torch.Tensor]:
    """(nats of all tokens but the first, [layers, experts] how often each expert was chosen)."""
    blocks = [m for m in model.modules() if isinstance(m, Qwen3_5MoeSparseMoeBlock)]
    counts = torch.zeros(len(blocks), model.config.num_experts)
    ids, nats, scored = torch.tensor(tokens), 0.0, 1
    while scored < len(ids):
        end = min(len(ids), scored + (context if scored == 1 else context // 2))
        begin = max(0, end - 1 - context)
        logits = model(ids[None, begin:end - 1], use_cache=False).logits[0]
        new = end - scored
        nats += F.cross_entropy(logits[-new:], ids[scored:end], reduction="sum").item()
        counts += torch.stack([block.counts for block in blocks])
        scored = end
    return nats, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, nargs="?",
                        default=pathlib.Path("models/demo.gguf"))
    args = parser.parse_args()
    model, tokenizer = model_file.read(args.model)
    network.speed_up(model)
    report, shares = {"bytes": args.model.stat().st_size}, []
    for path in sorted(args.model.parent.glob("heldout-*.txt")):
        raw = path.read_bytes()
        tokens = tokenizer.encode(vocabulary.END_OF_TEXT + raw.decode()).ids
        nats, counts = score(model, tokens, network.CONTEXT)
        shares.append(counts / counts.sum(1, keepdim=True))
        report[path.stem] = {
            "bytes": len(raw), "tokens": len(tokens) - 1,
            "bits_per_byte": round(nats / math.log(2) / len(raw), 4),
            "xz_bits_per_byte": round(8 * len(lzma.compress(raw, preset=9)) / len(raw), 4)}
    if len(shares) == 2:
        apart = (shares[0] - shares[1]).abs().sum(1) / 2
        report["routing_distance_by_layer"] = [round(float(x), 3) for x in apart]
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
