#!/usr/bin/env bash
# What people use against the server: the official npm clients, curl, the page in headless
# Chromium, promtool.
#
#   scripts/env --extra web tests/web_test.sh [BUILD]      BUILD: build/dev (default), build/release
#
# Needs the build's program and its model tiny-f32. The packages that tests/web/package-lock.json
# names come from npm's registry on first use. EXPERT_SPLIT_SCREENSHOTS: a folder for pictures.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=$(realpath "${1:-build/dev}")
export EXPERT_SPLIT_BINARY=$build/bin/expert-split
export EXPERT_SPLIT_MODEL=${EXPERT_SPLIT_MODEL:-$build/models/tiny-f32.gguf}
# Two software devices where there is no GPU, so that there is a split to show.
export GGML_VK_VISIBLE_DEVICES=${GGML_VK_VISIBLE_DEVICES-0,0}
export EXPERT_SPLIT_TARGETS=${EXPERT_SPLIT_TARGETS-vulkan:0=4MiB,vulkan:1=4MiB,cpu}

cd tests/web
[ -d node_modules ] && [ node_modules -nt package-lock.json ] || npm ci --ignore-scripts
node --test sdk.test.mjs curl.test.mjs page.test.mjs

# Names and types of the metrics, by Prometheus' own judgement.
node --input-type=module -e "
  import {startServer} from './server.mjs';
  const server = await startServer(['--targets', 'cpu']);
  await fetch(server.address + '/v1/completions', {method: 'POST',
      body: JSON.stringify({prompt: 'a', max_tokens: 2})});
  console.log((await (await fetch(server.address + '/metrics')).text()).trimEnd());
  await server.stop();" | promtool check metrics
echo 'web tests: all green'
