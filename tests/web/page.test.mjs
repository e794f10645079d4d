// The page in headless Chromium. EXPERT_SPLIT_SCREENSHOTS names a folder for pictures of it.
import assert from 'node:assert/strict';
import {join} from 'node:path';
import {after, before, test} from 'node:test';

import {Browser} from './browser.mjs';
import {eventually, startServer} from './server.mjs';

const pictures = process.env.EXPERT_SPLIT_SCREENSHOTS;

let server, browser;

before(async () => {
  server = await startServer(['--targets', process.env.EXPERT_SPLIT_TARGETS ?? 'cpu']);
  browser = await Browser.start();
  await browser.resize(1280, 800);
  await browser.open(server.address);
});

after(async () => {
  await browser?.stop();
  assert.equal(await server?.stop(), 0);
});

async function shot(name) {
  if (pictures) await browser.screenshot(join(pictures, name));
}

async function setMost(tokens) {
  // As the settings dialog does it.
  await browser.evaluate(`(() => {
    document.getElementById('open-settings').click();
    const form = document.querySelector('#settings form');
    form.elements.max_tokens.value = '${tokens}';
    form.querySelector('button[value=save]').click();
  })()`);
}

const lastText = 'document.querySelector(".message.assistant:last-child .body")?.textContent ?? ""';

test('shows every target and every layer', async () => {
  const placement = await (await fetch(`${server.address}/v1/placement`)).json();
  await eventually(() => browser.evaluate(
      `document.querySelectorAll("#targets tbody tr").length === ${placement.targets.length}`),
                   'all targets are shown');
  const text = await browser.evaluate('document.getElementById("targets").textContent');
  for (const {name} of placement.targets) assert.ok(text.includes(name), name);
  assert.ok(await browser.evaluate('document.getElementById("map").height') >= 3 * placement.layers.length);
  assert.equal(await browser.evaluate('document.getElementById("status").textContent'), 'demo');
});

test('a message is sent by keyboard and tokens appear while they come', async () => {
  await setMost(400);
  const picture = 'document.getElementById("map").toDataURL()';
  const quiet = await browser.evaluate(picture);
  await browser.evaluate('document.getElementById("prompt").focus()');
  await browser.type('Hello **there**');
  await browser.press('Enter');
  await eventually(() => browser.evaluate(`(${lastText}).length > 5`), 'tokens appear');
  assert.ok(await browser.evaluate('!document.getElementById("stop").hidden'));
  const first = (await browser.evaluate(lastText)).length;
  await eventually(() => browser.evaluate(`(${lastText}).length > ${first}`), 'more tokens appear');
  await eventually(() => browser.evaluate('Number(document.getElementById("speed-decode").textContent) > 0'),
                   'the speed is shown');
  await eventually(async () => (await browser.evaluate(picture)) !== quiet, 'the map changes');
  await shot('page-light.png');
});

test('Escape stops the answer', async () => {
  await browser.press('Escape');
  await eventually(() => browser.evaluate('document.getElementById("stop").hidden'), 'it stops');
  await eventually(async () => {
    const answer = await fetch(`${server.address}/v1/placement`);
    return (await answer.json()).activity.running === 0;
  }, 'the generation ends');
  assert.match(await browser.evaluate('document.querySelector(".note").textContent'), /stopped/);
});

test('the map can be read with the keyboard', async () => {
  await browser.evaluate('document.getElementById("map").focus()');
  await browser.press('ArrowRight');
  await browser.press('ArrowDown');
  assert.match(await browser.evaluate('document.getElementById("map-cell").textContent'),
               /^Layer 1, expert 1: /);
});

test('markup of an answer is shown and cannot do harm', async () => {
  const html = await browser.evaluate(`DOMPurify.sanitize(marked.parse(
      '**bold** <img src=x onerror=alert(1)> <script>alert(2)</script> [a](javascript:alert(3))'))`);
  assert.ok(html.includes('<strong>bold</strong>'));
  assert.ok(!/onerror|<script|javascript:/.test(html), html);
});

test('dark and on a phone', async () => {
  await browser.resize(1280, 800, true);
  await shot('page-dark.png');
  await browser.resize(390, 800);
  const fits = 'document.documentElement.scrollWidth <= window.innerWidth';
  assert.ok(await browser.evaluate(fits));
  await shot('page-phone.png');
  await browser.evaluate('document.getElementById("show-placement").click()');
  assert.ok(await browser.evaluate(fits));
  assert.ok(await browser.evaluate('document.getElementById("map").clientWidth > 200'));
  await shot('page-phone-placement.png');
});

test('nothing went wrong on the way', () => {
  // The browser says what it kept the harmful markup above from doing.
  const others = browser.problems.filter((text) => !text.includes('inline event handler'));
  assert.deepEqual(others, []);
});
