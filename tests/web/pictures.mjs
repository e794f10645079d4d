// Takes the pictures of the page that the documentation shows.
//
//   scripts/env --extra web node tests/web/pictures.mjs FOLDER
//
// Needs build/release and models/demo.gguf.
import {mkdir} from 'node:fs/promises';
import {dirname, join} from 'node:path';
import {fileURLToPath} from 'node:url';

import {Browser} from './browser.mjs';
import {eventually, startServer} from './server.mjs';

const repository = join(dirname(fileURLToPath(import.meta.url)), '../..');
const folder = process.argv[2];
if (!folder) throw new Error('usage: pictures.mjs FOLDER');
await mkdir(folder, {recursive: true});

process.env.EXPERT_SPLIT_BINARY ??= join(repository, 'build/release/bin/expert-split');
process.env.EXPERT_SPLIT_MODEL ??= join(repository, 'models/demo.gguf');
process.env.GGML_VK_VISIBLE_DEVICES ??= '0,0';
const server = await startServer(['--targets', 'vulkan:0=2MiB,vulkan:1=2MiB,cpu']);
const browser = await Browser.start();

async function ask(text, length) {
  await browser.evaluate('document.getElementById("prompt").focus()');
  await browser.type(text);
  await browser.press('Enter');
  await eventually(() => browser.evaluate(
      `document.querySelector(".message.assistant:last-child .body").textContent.length > ${length} ||
       document.getElementById("stop").hidden`), 'the model answers');
}

async function shot(name, width, height, dark = false) {
  await browser.resize(width, height, dark);
  await new Promise((resolve) => setTimeout(resolve, 300));  // for bars to reach their length
  await browser.screenshot(join(folder, name));
}

try {
  await browser.resize(1100, 640);
  await browser.open(server.address);
  await ask('Read Genesis 1.', 600);
  await shot('page.png', 1100, 640);
  await shot('page-dark.png', 1100, 640, true);
  await shot('page-phone.png', 390, 780);
  await browser.evaluate('document.getElementById("show-placement").click()');
  await shot('page-phone-placement.png', 390, 780);
} finally {
  await browser.stop();
  await server.stop();
}
