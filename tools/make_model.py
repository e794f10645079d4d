#!/usr/bin/env python3
"""Makes random qwen35moe models in GGUF, for tests and measurements.

A random model has the names, shapes, types and a tokenizer of a real one, but weights that are
drawn: it runs at the real speed and takes the real memory, and its text is noise (mostly printable
noise). The same options and --seed give the same bytes. Text works: a byte-level BPE tokenizer
with one token per byte and <|endoftext|>, <|im_start|>, <|im_end|>.

  scripts/env python3 tools/make_model.py --out tiny.gguf
  scripts/env python3 tools/make_model.py --out q4.gguf --type Q4_K --skew 1
  scripts/env python3 tools/make_model.py --preset 397b-a17b --sparse --out big.gguf

Presets (NAME: what it is; default types dense/experts/embeddings):
  tiny        4 layers of 8 experts, n_embd 256; F32/F32/F32; 31 MB
  35b-a3b     40 layers of 256 experts, n_embd 2048; Q8_0/Q4_K/Q8_0; 20 GB
  397b-a17b   60 layers of 512 experts, n_embd 4096; Q6_K/IQ2_XXS/Q8_0; 108 GB

Use --sparse for the big ones unless the data is really wanted: it writes the full header and a
hole, so that the file has its full size, reads as zeros and takes no disk space.
"""

import argparse
import os
import sys

import gguf
from gguf import GGMLQuantizationType as Type

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_output  # noqa: E402
import random_tensor  # noqa: E402
from qwen35moe_model import MIN_VOCAB, Options, RowsError, Shape, metadata, tensors  # noqa: E402

# name: (shape, dense type, expert type, embedding type)
PRESETS = {
    "tiny": (Shape(layers=4, embd=256, experts=8, experts_used=2, ff=256, shared_ff=256, heads=4,
                   kv_heads=2, head_dim=64, rope_dim=16, ssm_key_heads=2, ssm_value_heads=4,
                   ssm_state=64, vocab=272, ctx=4096), Type.F32, Type.F32, Type.F32),
    "35b-a3b": (Shape(layers=40, embd=2048, experts=256, experts_used=8, ff=512, shared_ff=512,
                      heads=16, kv_heads=2, head_dim=256, rope_dim=64, ssm_key_heads=16,
                      ssm_value_heads=32, ssm_state=128, vocab=248320, ctx=262144),
                Type.Q8_0, Type.Q4_K, Type.Q8_0),
    "397b-a17b": (Shape(layers=60, embd=4096, experts=512, experts_used=10, ff=1024,
                        shared_ff=1024, heads=32, kv_heads=2, head_dim=256, rope_dim=64,
                        ssm_key_heads=16, ssm_value_heads=64, ssm_state=128, vocab=248320,
                        ctx=262144), Type.Q6_K, Type.IQ2_XXS, Type.Q8_0),
}

# option: (field of Shape, help)
DIMENSIONS = {
    "layers": ("layers", "layers, without --nextn ones"),
    "experts": ("experts", "experts per layer"),
    "experts-used": ("experts_used", "experts per token"),
    "embd": ("embd", "hidden size"),
    "ff": ("ff", "inner size of an expert"),
    "shared-ff": ("shared_ff", "inner size of the shared expert"),
    "heads": ("heads", "query heads of an attention layer"),
    "kv-heads": ("kv_heads", "key/value heads of an attention layer"),
    "head-dim": ("head_dim", "size of an attention head"),
    "rope-dim": ("rope_dim", "rotated part of an attention head"),
    "ssm-key-heads": ("ssm_key_heads", "query/key heads of a DeltaNet layer"),
    "ssm-value-heads": ("ssm_value_heads", "value heads of a DeltaNet layer"),
    "ssm-state": ("ssm_state", "size of a DeltaNet head"),
    "interval": ("interval", "every N-th layer has full attention, the others are DeltaNet"),
    "nextn": ("nextn", "multi-token prediction layers"),
    "vocab": ("vocab", f"tokens, at least {MIN_VOCAB}"),
    "ctx": ("ctx", "context length in the metadata"),
}


class UsageError(Exception):
    """Something wrong in the command line; the message is one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UsageError(message)


def _type(text: str) -> Type:
    kind = random_tensor.KNOWN.get(text.upper())
    if kind is None:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no weight type known here; known: {', '.join(random_tensor.KNOWN)}")
    return kind


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="make_model.py", description=__doc__,
                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny", metavar="NAME",
                        help=f"one of {', '.join(PRESETS)} (default tiny)")
    parser.add_argument("--out", required=True, metavar="FILE.gguf", help="file to write")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    types = parser.add_argument_group(
        "types", "F32, F16, BF16 hold the drawn weights, Q4_0 to Q8_0, TQ*, MXFP4 hold them "
        "quantised; K-quants, IQ types, NVFP4, Q1_0 and Q2_0 are random blocks with weights of the same "
        f"deviation. Known: {', '.join(random_tensor.KNOWN)}.")
    types.add_argument("--type", type=_type, metavar="T",
                       help="of all matrices but the router (F32) and the embeddings")
    types.add_argument("--expert-type", type=_type, metavar="T", help="of the expert stacks")
    types.add_argument("--embd-type", type=_type, metavar="T",
                       help="of token embeddings and output (default: --type if F32, F16 or BF16, "
                       "else Q8_0)")
    types.add_argument("--dequantized", action="store_true",
                       help="store as F32 what the weights of those types mean")
    shape = parser.add_argument_group("dimensions", "default: the preset's")
    for option, (_, text) in DIMENSIONS.items():
        shape.add_argument(f"--{option}", type=int, metavar="N", help=text)
    variant = parser.add_argument_group("variants")
    variant.add_argument("--skew", type=float, default=0.0, metavar="S",
                         help="expert popularity falls like rank^-S (default 0: about even; 1 is "
                         "strongly uneven); which experts are popular differs by layer")
    variant.add_argument("--fused", action="store_true", help="ffn_gate_up_exps instead of two")
    variant.add_argument("--tied", action="store_true", help="no output.weight")
    variant.add_argument("--biases", action="store_true", help="biases of attn_q, attn_k, attn_v")
    variant.add_argument("--scales", action="store_true",
                         help=".scale and .input_scale tensors (per tensor, and per expert)")
    variant.add_argument("--split", type=int, default=1, metavar="N",
                         help="N shards, FILE-00001-of-0000N.gguf and so on")
    variant.add_argument("--sparse", action="store_true", help="header and a hole, no weights")
    return parser


def _shape(args: argparse.Namespace, preset: Shape) -> Shape:
    fields = dict(vars(preset))
    for option, (name, _) in DIMENSIONS.items():
        value = getattr(args, name)
        if value is None:
            continue
        if value < (0 if name == "nextn" else 1):
            raise UsageError(f"--{option} {value}: must be positive")
        fields[name] = value
    shape = Shape(**fields)
    for wrong, message in (
            (shape.experts_used > shape.experts,
             f"--experts-used {shape.experts_used}: more than --experts {shape.experts}"),
            (shape.heads % shape.kv_heads,
             f"--kv-heads {shape.kv_heads}: must divide --heads {shape.heads}"),
            (shape.ssm_value_heads % shape.ssm_key_heads,
             f"--ssm-key-heads {shape.ssm_key_heads}: must divide --ssm-value-heads "
             f"{shape.ssm_value_heads}"),
            (shape.rope_dim % 2 or shape.rope_dim > shape.head_dim,
             f"--rope-dim {shape.rope_dim}: must be even and at most --head-dim {shape.head_dim}"),
            (shape.vocab < MIN_VOCAB, f"--vocab {shape.vocab}: at least {MIN_VOCAB}")):
        if wrong:
            raise UsageError(message)
    return shape


def _options(args: argparse.Namespace, types: tuple[Type, Type, Type]) -> Options:
    dense, experts, embd = types
    if args.type is not None:
        dense = experts = args.type
        embd = dense if dense in (Type.F32, Type.F16, Type.BF16) else Type.Q8_0
    if args.expert_type is not None:
        experts = args.expert_type
    if args.embd_type is not None:
        embd = args.embd_type
    options = Options(dense, experts, embd, args.seed, args.skew, args.fused, args.tied,
                      args.biases, args.scales, args.dequantized)
    if options.skew and not random_tensor.holds_values(options.embd_type):
        raise UsageError(f"--skew needs token embeddings that hold given values, but "
                         f"{options.embd_type.name} is made of random blocks; use --embd-type Q8_0")
    return options


def _file_type(options: Options) -> int:
    name = options.expert_type.name
    for candidate in (f"MOSTLY_{name}", f"MOSTLY_{name}_M", f"MOSTLY_{name}_S", f"ALL_{name}"):
        if hasattr(gguf.LlamaFileType, candidate):
            return int(getattr(gguf.LlamaFileType, candidate))
    return int(gguf.LlamaFileType.GUESSED)


def run(argv: list[str]) -> list[str]:
    """Makes the model that the arguments describe; returns the files written. Raises UsageError."""
    args = _parser().parse_args(argv)
    preset = args.preset
    if preset not in PRESETS:
        raise UsageError(f"--preset '{preset}': no such preset; known: {', '.join(PRESETS)}")
    shape = _shape(args, PRESETS[preset][0])
    options = _options(args, PRESETS[preset][1:])
    try:
        entries = tensors(shape, options)
    except RowsError as error:
        raise UsageError(str(error)) from None
    if not 1 <= args.split <= len(entries):
        raise UsageError(f"--split {args.split}: between 1 and the number of tensors, {len(entries)}")
    folder = os.path.dirname(os.path.abspath(args.out))
    if not os.path.isdir(folder):
        raise UsageError(f"--out {args.out}: there is no folder {folder}")
    name = f"random {preset} {options.dense_type.name}/{options.expert_type.name} seed {args.seed}"
    return gguf_output.write(args.out, metadata(shape, options, name, _file_type(options)), entries,
                             args.split, args.sparse)


def main() -> int:
    try:
        for path in run(sys.argv[1:]):
            print(f"{path} {os.path.getsize(path)} bytes")
    except (UsageError, OSError) as error:
        print(f"make_model.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
