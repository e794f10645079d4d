#!/usr/bin/env python3
"""Compares the placement policies on one model at several sizes of its first target.

    scripts/env python3 tools/compare_policies.py --model M.gguf --profile P.json \\
        --assume cuda:0=900GB/s@24GiB,cpu=50GB/s --targets cuda:0,cpu [--svg FILE] [--markdown FILE]

Runs `expert-split plan --compare` with 10, 25, 50 and 75 % of the model's expert bytes on the first
target and prints a table: for each policy the share of the routed traffic that the fastest target
computes and the expected time of a generated token's experts. --svg draws the shares.
"""

import argparse
import json
import pathlib
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
POLICIES = ["layers", "ordered", "balanced"]
COLOURS = {"layers": "#999999", "ordered": "#0072b2", "balanced": "#d55e00"}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(REPOSITORY / "build/release/bin/expert-split"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--profile", help="without it every expert is taken to be as hot")
    parser.add_argument("--targets", default="cuda:0,cpu", help="the first one's size is varied")
    parser.add_argument("--assume", default="", help="as for expert-split plan")
    parser.add_argument("--percent", type=float, nargs="+", default=[10, 25, 50, 75])
    parser.add_argument("--markdown", help="write the table here instead of printing it")
    parser.add_argument("--svg", help="draw the shares to this file")
    return parser.parse_args(arguments)


def compare(options, percent):
    """{policy: {"decode_ms", "fastest_share"}} of the policies that fit, and the fastest target."""
    first, *others = options.targets.split(",")
    command = [options.program, "plan", "--model", options.model, "--json", "--compare",
               "--targets", ",".join([f"{first}={percent:g}%", *others])]
    if options.profile:
        command += ["--profile", options.profile]
    if options.assume:
        command += ["--assume", options.assume]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    document = json.loads(done.stdout)["compare"]
    fitting = {p["policy"]: p for p in document["policies"] if p["fits"]}
    return fitting, document["fastest"]


def table(results, fastest):
    heading = "| bytes on the first target |"
    for policy in POLICIES:
        heading += f" {policy}: share on {fastest} | time a token |"
    lines = [heading, "|---" * (1 + 2 * len(POLICIES)) + "|"]
    for percent, policies in results.items():
        line = f"| {percent:g} % |"
        for policy in POLICIES:
            if policy in policies:
                line += (f" {100 * policies[policy]['fastest_share']:.1f} % |"
                         f" {policies[policy]['decode_ms']:.3f} ms |")
            else:
                line += " does not fit | |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def plot(results, fastest):
    """Groups of bars: a group a size, a bar a policy."""
    width, height, left, top, bar, gap = 640, 360, 56, 40, 34, 36
    group = bar * len(POLICIES) + gap
    scale = height - top - 60
    base = top + scale
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
             '<rect width="100%" height="100%" fill="#fff"/>']
    for share in (0, 25, 50, 75, 100):
        y = base - scale * share / 100
        parts.append(f'<path d="M{left} {y:g}H{width - 16}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:g}" text-anchor="end">{share} %</text>')
    for i, (percent, policies) in enumerate(results.items()):
        x = left + gap / 2 + i * group
        for j, policy in enumerate(POLICIES):
            if policy not in policies:
                continue
            tall = scale * policies[policy]["fastest_share"]
            parts.append(f'<rect x="{x + j * bar:g}" y="{base - tall:g}" width="{bar - 4}" '
                         f'height="{tall:g}" fill="{COLOURS[policy]}"/>')
        parts.append(f'<text x="{x + bar * len(POLICIES) / 2:g}" y="{base + 20}" '
                     f'text-anchor="middle">{percent:g} % of bytes</text>')
    for j, policy in enumerate(POLICIES):
        x = left + 110 * j
        parts.append(f'<rect x="{x}" y="{height - 24}" width="13" height="13" '
                     f'fill="{COLOURS[policy]}"/>')
        parts.append(f'<text x="{x + 20}" y="{height - 13}">{policy}</text>')
    parts.append(f'<text x="{left}" y="20">Share of the routed traffic on {fastest}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def run(arguments):
    options = parse(arguments)
    results = {}
    fastest = ""
    for percent in options.percent:
        results[percent], fastest = compare(options, percent)
    text = table(results, fastest)
    if options.markdown:
        pathlib.Path(options.markdown).write_text(text)
    else:
        print(text, end="")
    if options.svg:
        pathlib.Path(options.svg).write_text(plot(results, fastest))


if __name__ == "__main__":
    run(sys.argv[1:])
