#!/usr/bin/env python3
"""Records transformers' logits of the demo model for tests: tests/golden/demo.*.

  scripts/env --extra reference python3 tools/demo_model/record.py

demo.txt is cut into demo.tokens, whose logits are demo.logits.f32. The weights are those that the
shipped file's blocks stand for; tests compare what libllama and expert-split compute from the same
weights in F32.
"""

import pathlib

import torch

import model_file
import network

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ("Exodus 10\n\n12 And the LORD said unto Moses, Stretch out thine hand\n"
        "<|endoftext|>2.1. Rollback\n\nIf sqlite3_step() returns SQLITE_BUSY, don't COMMIT; wait 50 ms.")


def main() -> None:
    model, tokenizer = model_file.read(ROOT / "models" / "demo.gguf")
    ids = tokenizer.encode(TEXT).ids
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        network.speed_up(model)  # what was trained computes the same
        torch.testing.assert_close(model(torch.tensor([ids]), use_cache=False).logits[0], logits,
                                   rtol=1e-3, atol=1e-3)
    golden = ROOT / "tests" / "golden"
    (golden / "demo.txt").write_text(TEXT)
    (golden / "demo.tokens").write_text(" ".join(map(str, ids)) + "\n")
    logits.numpy().astype("<f4").tofile(golden / "demo.logits.f32")
    print(f"{len(ids)} tokens, {logits.numel() * 4} bytes")


if __name__ == "__main__":
    main()
