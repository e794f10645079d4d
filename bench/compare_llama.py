#!/usr/bin/env python3
"""Runs llama.cpp and expert-split in turn on the same models and prints the ratios of their speeds.

  scripts/build
  scripts/env python3 bench/compare_llama.py [--cases main] [--json FILE] [--markdown FILE]

The models are made once and kept: 8 layers of the 35B-A3B shape with a vocabulary of 32768. `main` is
written as F16 (14 GB, deleted afterwards) and brought to Q4_K_M (about 4 GB) by llama-quantize, so
that both programs see the mix of types that people run; the others hold random blocks of one type.
llama-bench (and llama-batched-bench for several sequences) runs with its defaults but for the number
of threads and -ngl 0, expert-split with --targets cpu. Each pair runs the two programs one after the
other, in alternating order; the ratio of a pair is ours divided by llama.cpp's, and what counts is
the median over pairs; of seconds it is llama.cpp's divided by ours, so that more is better
everywhere. A bandwidth probe (random blocks of 288 KB, all threads) runs before each
pair. The script warns when the machine is not idle; such numbers mean nothing.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ["--preset", "35b-a3b", "--layers", "8", "--vocab", "32768"]
SMALL = ["--preset", "35b-a3b", "--layers", "4", "--experts", "8", "--vocab", "1024"]
# Options of tools/make_model.py, what llama-quantize makes of it, and the disk that this takes.
MODELS = {
    "main": (SHAPE + ["--type", "F16"], "Q4_K_M", 20e9),
    "small": (SMALL + ["--type", "F16"], "Q4_K_M", 2e9),
    "q8_0": (SHAPE + ["--type", "Q8_0"], None, 8e9),
    "iq4_xs": (SHAPE + ["--type", "IQ4_XS"], None, 5e9),
    "iq2_xxs": (SHAPE + ["--type", "Q8_0", "--expert-type", "IQ2_XXS"], None, 4e9),
    "mxfp4": (SHAPE + ["--type", "Q8_0", "--expert-type", "MXFP4"], None, 5e9),
}
# Every other type, in the experts and the dense part of a smaller model.
OTHER_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
               "Q6_K", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "TQ1_0",
               "TQ2_0", "NVFP4", "Q1_0", "Q2_0")
MODELS |= {f"only_{kind.lower()}": (["--preset", "35b-a3b", "--layers", "4", "--experts", "32",
                                     "--vocab", "4096", "--type", kind], None, 3e9)
           for kind in OTHER_TYPES}
# A pair whose probe falls below this part of the best one ran on a machine that was busy, or whose
# threads shared a core.
SLOW_PROBE = 0.8


@dataclasses.dataclass(frozen=True)
class Case:
    """One run of either program."""
    model: str
    prompt: int = 0
    generate: int = 0
    depth: int = 0
    sequences: int = 1
    threads: int = 0  # 0: all; negative: so many times as many
    repack: bool = True
    load: bool = False  # measures seconds from the program's start to its first prompt


CASES = {
    "main": [Case("main", prompt=512, generate=64), Case("main", prompt=128)],
    "depth": [Case("main", generate=64, depth=4096)],
    "sequences": [Case("main", generate=64, sequences=4)],
    "types": [Case(name, prompt=512, generate=64)
              for name in ("q8_0", "iq4_xs", "iq2_xxs", "mxfp4")],
    "others": [Case(f"only_{kind.lower()}", prompt=256, generate=32) for kind in OTHER_TYPES],
    "thread": [Case("main", prompt=512, generate=64, threads=1)],
    "oversubscribed": [Case("main", prompt=128, generate=32, threads=-2)],
    "unpacked": [Case(name, prompt=512, generate=64, repack=False)
                 for name in ("main", "q8_0", "iq2_xxs")],
    "unpacked_others": [Case(f"only_{kind.lower()}", generate=32, repack=False)
                        for kind in OTHER_TYPES],
    "load": [Case("main", load=True)],
    "small": [Case("small", prompt=128, generate=16)],
}


class Failure(Exception):
    """One line for the user."""


def run(command: list[str]) -> str:
    # With a software Vulkan device visible llama.cpp would send large batches there.
    environment = {k: v for k, v in os.environ.items() if k != "GGML_VK_VISIBLE_DEVICES"}
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}; run this through scripts/env, after "
                      "scripts/build") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Failure(f"{' '.join(command)}: exit status {done.returncode}: {lines[-1]}")
    return done.stdout


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def model_path(arguments: argparse.Namespace, name: str) -> pathlib.Path:
    return arguments.models / f"{name}.gguf"


def make_model(path: pathlib.Path, name: str) -> None:
    options, quantised, need = MODELS[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise Failure(f"{path.parent}: {free / 1e9:.0f} GB free, making the model takes "
                      f"{need / 1e9:.0f}; give another folder with --models")
    made = path.with_suffix(".made.gguf")
    partial = path.with_suffix(".partial.gguf")
    try:
        say(f"making {path} (some minutes)")
        run([sys.executable, "-B", str(REPOSITORY / "tools/make_model.py"), *options, "--out",
             str(made)])
        if quantised:
            run(["llama-quantize", str(made), str(partial), quantised, str(os.cpu_count())])
            partial.rename(path)
        else:
            made.rename(path)
    finally:
        made.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def bytes_per_token(path: pathlib.Path) -> float:
    """Bytes of weights that a decoded token reads."""
    import gguf  # of python3-gguf; here, so that --help works without

    reader = gguf.GGUFReader(str(path))
    value = {key.rsplit(".", 1)[-1]: field.contents() for key, field in reader.fields.items()
             if key.endswith((".expert_count", ".expert_used_count"))}
    used = value["expert_used_count"] / value["expert_count"]
    total = 0.0
    for tensor in reader.tensors:
        if tensor.name != "token_embd.weight":
            total += int(tensor.n_bytes) * (used if "_exps" in tensor.name else 1)
    return total


def probe(arguments: argparse.Namespace, threads: int) -> float:
    return json.loads(run([str(arguments.bin / "membw"), str(threads)]))["median_gb_s"]


def measure_llama(arguments: argparse.Namespace, case: Case, threads: int) -> dict[str, float]:
    model = str(model_path(arguments, case.model))
    if case.load:
        start = time.monotonic()
        run(["llama-bench", "-m", model, "-ngl", "0", "-t", str(threads), "-p", "1", "-n", "0", "-r",
             "1", "--no-warmup"])
        return {"load": time.monotonic() - start}
    if case.sequences > 1:
        lines = run(["llama-batched-bench", "-m", model, "-ngl", "0", "-t", str(threads), "-tb",
                     str(threads), "-c", "4096", "-npp", "16", "-ntg", str(case.generate), "-npl",
                     str(case.sequences), "--output-format", "jsonl"]).splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        return {"generate": rows[-1]["speed_tg"]}
    rows = json.loads(run(["llama-bench", "-m", model, "-ngl", "0", "-t", str(threads), "-p",
                           str(case.prompt), "-n", str(case.generate), "-d", str(case.depth), "-r",
                           str(arguments.repeats), "-o", "json", "--repack",
                           "1" if case.repack else "0"]))
    return {"prompt" if row["n_prompt"] else "generate": statistics.median(row["samples_ts"])
            for row in rows}


def measure_ours(arguments: argparse.Namespace, case: Case, threads: int) -> dict[str, float]:
    depth = 16 if case.sequences > 1 else case.depth
    program = [str(arguments.bin / "expert-split")]
    common = ["--model", str(model_path(arguments, case.model)), "--targets", "cpu", "--threads",
              str(threads), "--repack", "auto" if case.repack else "off", "--json"]
    if case.load:
        start = time.monotonic()
        run([*program, "run", *common, "--prompt", "a", "-n", "1"])
        return {"load": time.monotonic() - start}
    result = json.loads(run([*program, "bench", *common, "-p", str(case.prompt), "-n",
                             str(case.generate), "--depth", str(depth), "--parallel",
                             str(case.sequences), "-r", str(arguments.repeats)]))
    speeds = {"load_ms": result["load_ms"]}
    if case.prompt:
        speeds["prompt"] = result["prompt_tok_s"]["median"]
    if case.generate:
        speeds["generate"] = result["decode_tok_s"]["median"]
    return speeds


def measure(arguments: argparse.Namespace, case: Case) -> list[dict]:
    threads = case.threads or arguments.threads
    if case.threads < 0:
        threads = -case.threads * arguments.threads
    pairs = []
    for index in range(arguments.pairs):
        pair = {"probe": probe(arguments, threads)}
        order = [("llama", measure_llama), ("ours", measure_ours)]
        for name, program in order if index % 2 == 0 else reversed(order):
            pair[name] = program(arguments, case, threads)
        pairs.append(pair)
        say(f"{case}: pair {index + 1} of {arguments.pairs}: {json.dumps(pair)}")
    return pairs


def what(case: Case, kind: str) -> str:
    if kind == "load":
        return "seconds to the first prompt"
    text = f"prompt {case.prompt}" if kind == "prompt" else f"generate {case.generate}"
    if kind == "generate" and case.depth:
        text += f" at {case.depth}"
    if case.sequences > 1:
        text += f", {case.sequences} sequences"
    if case.threads == 1:
        text += ", one thread"
    if case.threads < 0:
        text += f", {-case.threads} threads a core"
    if not case.repack:
        text += ", weights as the file has them"
    return text


def kinds_of(pairs: list[dict]) -> list[str]:
    return [kind for kind in ("prompt", "generate", "load") if kind in pairs[0]["ours"]]


def lines_of(arguments: argparse.Namespace, results: list[tuple[Case, list[dict]]]) -> list[list]:
    lines = []
    for case, pairs in results:
        for kind in kinds_of(pairs):
            llama = [pair["llama"][kind] for pair in pairs]
            ours = [pair["ours"][kind] for pair in pairs]
            ratios = [a / b if kind == "load" else b / a for a, b in zip(llama, ours)]
            limit = ""
            if kind == "generate" and case.sequences == 1 and not case.depth and case.threads >= 0:
                size = bytes_per_token(model_path(arguments, case.model))
                parts = [size * pair["ours"][kind] / (pair["probe"] * 1e9) for pair in pairs]
                limit = f"{statistics.median(parts):.0%} of {size / 1e6:.0f} MB"
            lines.append([case.model, what(case, kind), f"{statistics.median(llama):.2f}",
                          f"{statistics.median(ours):.2f}", f"{statistics.median(ratios):.2f}",
                          f"{min(ratios):.2f} to {max(ratios):.2f}", limit])
    return lines


HEADER = ["model", "what", "llama.cpp", "ours", "ratio", "pairs", "of the bandwidth limit"]


def table_of(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
                     for row in rows)


def report(arguments: argparse.Namespace, results: list[tuple[Case, list[dict]]],
           busy: bool) -> str:
    text = table_of([HEADER] + lines_of(arguments, results))
    probes = [pair["probe"] for _, pairs in results for pair in pairs]
    text += (f"\n\nTokens/s, medians of {arguments.pairs} pairs. Read bandwidth {min(probes):.1f} to "
             f"{max(probes):.1f} GB/s. {cpu_name()}, {os.cpu_count()} threads. "
             f"{llama_version()}.\n")
    for case, pairs in results:
        best = max(pair["probe"] for pair in pairs)
        slow = sum(1 for pair in pairs if pair["probe"] < SLOW_PROBE * best)
        if slow:
            names = " and ".join(what(case, kind) for kind in kinds_of(pairs))
            text += (f"\nWARNING: {case.model}, {names}: "
                     f"in {slow} of {len(pairs)} pairs the bandwidth was below {SLOW_PROBE:.0%} of "
                     "the best; measure again\n")
    if busy:
        text += "\nWARNING: the machine was not idle; these numbers mean nothing\n"
    return text


def cpu_name() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def llama_version() -> str:
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}, ", "llama.cpp-tools",
                           "libggml0"], capture_output=True, text=True, check=False)
    return done.stdout.rstrip(", ") or "llama.cpp of unknown version"


def is_busy() -> bool:
    """Whether others took more than a tenth of the processor's time in the last two seconds."""
    def ticks() -> tuple[int, int]:
        fields = [int(value) for value in
                  pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return fields[3] + fields[4], sum(fields)

    idle, total = ticks()
    time.sleep(2)
    idle, total = (after - before for after, before in zip(ticks(), (idle, total)))
    return idle < 0.9 * total


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="main", metavar="A,B",
                        help=f"of {', '.join(CASES)}, or all of them but small (default main; small "
                        "only tries the script)")
    parser.add_argument("--models", type=pathlib.Path, default=REPOSITORY / "build/bench",
                        metavar="FOLDER", help="where models are made and kept (default: "
                        "build/bench)")
    parser.add_argument("--bin", type=pathlib.Path, default=REPOSITORY / "build/release/bin",
                        help="where expert-split and membw are (default: build/release/bin)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("-r", dest="repeats", type=int, default=3, metavar="N",
                        help="samples of each program in a pair (default 3)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N",
                        help="default: one a core")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write every pair")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="also write the table")
    arguments = parser.parse_args()
    if min(arguments.pairs, arguments.repeats, arguments.threads) < 1:
        parser.error("--pairs, -r and --threads: at least 1")
    if arguments.cases == "all":
        arguments.cases = ",".join(name for name in CASES if name != "small")
    unknown = [name for name in arguments.cases.split(",") if name not in CASES]
    if unknown:
        parser.error(f"--cases: '{unknown[0]}' is none of {', '.join(CASES)}")
    return arguments


def main() -> int:
    arguments = options()
    try:
        # What makes a model is no foreign load, what ran before it is.
        busy = is_busy()
        if busy:
            say("warning: the machine is not idle")
        cases = [case for name in arguments.cases.split(",") for case in CASES[name]]
        for name in dict.fromkeys(case.model for case in cases):
            if not model_path(arguments, name).exists():
                make_model(model_path(arguments, name), name)
        results = [(case, measure(arguments, case)) for case in cases]
    except Failure as failure:
        say(f"compare_llama.py: {failure}")
        return 1
    except KeyboardInterrupt:
        return 130
    text = report(arguments, results, busy)
    print(text, end="")
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(
            {"busy": busy, "cpu": cpu_name(), "versions": llama_version(),
             "cases": [{**dataclasses.asdict(case), "pairs": pairs} for case, pairs in results]},
            indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
