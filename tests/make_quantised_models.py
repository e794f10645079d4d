"""Makes the models of quantised_models_test: for every type and seed one of that type and one that
stores as F32 what its weights mean. One process, because starting sixty takes longer than the work.

  make_quantised_models.py FOLDER TYPE...
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import make_model  # noqa: E402

SEEDS = (1, 2, 3)
# One DeltaNet and one attention layer; K-quants want rows of 256.
SHAPE = ("--layers", "2", "--interval", "2", "--experts", "4")


def main() -> None:
    folder, *types = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    for kind in types:
        for seed in SEEDS:
            for suffix, more in (("", ()), ("-exact", ("--dequantized",))):
                path = os.path.join(folder, f"{kind.lower()}-{seed}{suffix}.gguf")
                make_model.run(["--out", path, "--type", kind, "--seed", str(seed), *SHAPE, *more])


main()
