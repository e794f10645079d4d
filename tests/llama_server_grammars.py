#!/usr/bin/env python3
"""Writes, for each JSON schema of a file of cases, the grammar that llama-server makes of it.

llama_server_grammars.py LLAMA_SERVER MODEL CASES.jsonl OUT.jsonl

OUT has a line for each case: {"grammar": text} or {"error": text}.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until_ready(base, server):
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"llama-server ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(base + "/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    sys.exit("llama-server is not ready after a minute")


def grammar_of(base, schema):
    # Generating one token is the cheapest request that answers with its settings.
    body = json.dumps({"prompt": "a", "n_predict": 1, "json_schema": schema}).encode()
    request = urllib.request.Request(base + "/completion", body,
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            settings = json.load(response)["generation_settings"]
    except urllib.error.HTTPError as error:
        return {"error": error.read().decode(errors="replace")}
    return {"grammar": settings["grammar"]} if settings.get("grammar") else {"error": "no grammar"}


def main():
    server_path, model, cases, out = sys.argv[1:]
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if k != "GGML_VK_VISIBLE_DEVICES"}
    server = subprocess.Popen(
        [server_path, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--ctx-size",
         "256", "--parallel", "1", "--threads", "1", "--no-warmup"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        base = f"http://127.0.0.1:{port}"
        wait_until_ready(base, server)
        with open(cases, encoding="utf-8") as lines, open(out, "w", encoding="utf-8") as results:
            for line in lines:
                results.write(json.dumps(grammar_of(base, json.loads(line)["schema"])) + "\n")
    finally:
        server.terminate()
        server.wait(timeout=30)


if __name__ == "__main__":
    main()
