#!/usr/bin/env python3
"""Writes a trained demo model, its held-out texts and its log where the repository keeps them.

  scripts/env --extra reference --extra texts python3 tools/demo_model/export.py

--out (default models) gets demo.gguf, heldout-DOMAIN.txt, which evaluate.py and tests read, and
training.log.
"""

import argparse
import pathlib
import shutil

import torch
from tokenizers import Tokenizer

import model_file
import network
import texts
from shared_state import SharedState
from train import SEED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/demo_model"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("models"))
    parser.add_argument("--type", default="Q8_0", help="of llama-quantize (default Q8_0)")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    model = network.build(SEED)
    SharedState(model, 1).restore(torch.load(args.work / "checkpoint.pt", weights_only=True))
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    model_file.write(model, tokenizer, args.type, args.out / "demo.gguf")
    for domain, documents in texts.read(SEED)[1].items():
        (args.out / f"heldout-{domain}.txt").write_text(texts.held_out_text(documents))
    shutil.copyfile(args.work / "train.log", args.out / "training.log")
    print(f"{args.out / 'demo.gguf'} {(args.out / 'demo.gguf').stat().st_size} bytes; texts from "
          + ", ".join(" ".join(item) for item in texts.package_versions().items()))


if __name__ == "__main__":
    main()
