// Where the experts live and what they are doing: asked for every second while the page is seen.
import {request} from './settings.js';

const PERIOD_MS = 1000;
const COLOURS = 8;  // --target-0 to --target-7

const status = document.getElementById('status');
const canvas = document.getElementById('map');
const cellText = document.getElementById('map-cell');
const rows = document.querySelector('#targets tbody');
const section = document.getElementById('placement');
const toggle = document.getElementById('show-placement');

let last = null;       // the answer before, with its time
let current = null;
let traffic = null;    // [layers][experts] rows since the answer before; null when not counted
let cursor = null;     // {layer, expert}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return Array.from({length: COLOURS}, (_, i) => style.getPropertyValue(`--target-${i}`).trim());
}

function bytes(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}

// "2.0 of 4.0 MiB"
function ofCapacity(target) {
  const used = bytes(target.bytes);
  if (target.capacity === null) return used;
  const capacity = bytes(target.capacity);
  const unit = capacity.slice(capacity.indexOf(' '));
  return `${used.endsWith(unit) ? used.slice(0, -unit.length) : used} of ${capacity}`;
}

function percent(share) {
  return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

function setText(id, text) {
  const element = document.getElementById(id);
  if (element.textContent !== text) element.textContent = text;
}

function setStatus(text, problem = false) {
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = problem ? 'problem' : '';
}

function makeRow(index) {
  const row = document.createElement('tr');
  const name = document.createElement('th');
  name.scope = 'row';
  const swatch = document.createElement('span');
  swatch.className = 'swatch';
  swatch.style.background = `var(--target-${index % COLOURS})`;
  name.append(swatch, document.createElement('span'));
  row.append(name);
  for (let i = 0; i < 3; ++i) {
    const cell = document.createElement('td');
    const bar = document.createElement('div');
    bar.className = 'bar';
    const fill = document.createElement('span');
    fill.style.background = `var(--target-${index % COLOURS})`;
    bar.append(fill);
    cell.append(document.createElement('span'), bar);
    row.append(cell);
  }
  return row;
}

function setBar(cell, text, share) {
  cell.firstChild.textContent = text;
  cell.querySelector('.bar > span').style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
}

// Shares of what was computed since the answer before; of everything while nothing was.
function drawTargets(seconds) {
  const {targets} = current;
  while (rows.children.length < targets.length) rows.append(makeRow(rows.children.length));
  while (rows.children.length > targets.length) rows.lastChild.remove();
  const total = targets.reduce((sum, target) => sum + target.bytes, 0);
  const recent = targets.map((target, i) => target.rows - (last?.targets[i]?.rows ?? target.rows));
  const moved = recent.reduce((sum, count) => sum + count, 0);
  targets.forEach((target, i) => {
    const [name, filled, share, busy] = rows.children[i].children;
    name.lastChild.textContent = target.name;
    const whole = target.capacity ?? total;
    setBar(filled, `${target.units} experts, ${ofCapacity(target)}`,
           whole ? target.bytes / whole : 0);
    const part = moved ? recent[i] / moved : target.share;
    setBar(share, percent(part), part);
    const before = last?.targets[i]?.busy_ms ?? target.busy_ms;
    const working = seconds ? (target.busy_ms - before) / 1000 / seconds : 0;
    setBar(busy, percent(working), working);
  });
}

function drawSpeeds() {
  const now = current.activity;
  const before = last?.activity ?? now;
  const rate = (tokens, time) => (time > 0 ? tokens / time : 0);
  const decode = rate(now.decode_step_tokens - before.decode_step_tokens,
                      now.decode_seconds - before.decode_seconds);
  const prefill = rate(now.prompt_tokens - before.prompt_tokens,
                       now.prefill_seconds - before.prefill_seconds);
  setText('speed-decode', decode.toFixed(1));
  setText('speed-prompt', prefill.toFixed(0));
  setText('running', `${now.running} of ${now.slots}`);
  setText('queued', `${now.queued}`);
}

function countTraffic() {
  const now = current.unit_rows;
  const before = last?.unit_rows;
  if (!now?.length) return null;
  return now.map((layer, l) => layer.map((count, e) => count - (before?.[l]?.[e] ?? count)));
}

function drawMap() {
  if (!current) return;
  const {layers} = current;
  const experts = layers[0]?.length ?? 0;
  const width = canvas.clientWidth;
  const rowHeight = Math.max(3, Math.min(24, Math.floor(480 / Math.max(1, layers.length))));
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${rowHeight * layers.length}px`;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(rowHeight * layers.length * scale));
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  const palette = colours();
  const cell = experts ? width / experts : 0;
  const gap = cell > 4 ? 1 : 0;
  const hottest = traffic ? Math.max(1, ...traffic.map((layer) => Math.max(...layer))) : 1;
  const quiet = traffic && traffic.some((layer) => layer.some((count) => count > 0)) ? 0.3 : 0.75;
  layers.forEach((layer, l) => {
    layer.forEach((owner, e) => {
      const count = traffic?.[l]?.[e] ?? 0;
      context.globalAlpha = count > 0 ? 0.5 + 0.5 * Math.log1p(count) / Math.log1p(hottest) : quiet;
      context.fillStyle = palette[owner % COLOURS];
      context.fillRect(e * cell, l * rowHeight, Math.max(0.5, cell - gap), rowHeight - gap);
    });
  });
  if (cursor) {
    context.globalAlpha = 1;
    context.strokeStyle = getComputedStyle(document.body).color;
    context.strokeRect(cursor.expert * cell, cursor.layer * rowHeight, Math.max(2, cell), rowHeight);
  }
}

function describeCell() {
  if (!cursor || !current) return;
  const {layer, expert} = cursor;
  const owner = current.targets[current.layers[layer][expert]];
  const total = current.unit_rows?.[layer]?.[expert];
  const now = traffic?.[layer]?.[expert];
  cellText.textContent = `Layer ${layer}, expert ${expert}: ${owner.name}` +
      (total === undefined ? '' : `, ${total} rows so far${now ? `, ${now} in the last second` : ''}`);
}

function moveCursor(layer, expert) {
  if (!current?.layers.length) return;
  const clamp = (value, most) => Math.min(most - 1, Math.max(0, value));
  cursor = {layer: clamp(layer, current.layers.length), expert: clamp(expert, current.layers[0].length)};
  drawMap();
  describeCell();
}

canvas.addEventListener('pointermove', (event) => {
  if (!current?.layers.length) return;
  const box = canvas.getBoundingClientRect();
  moveCursor(Math.floor((event.clientY - box.top) / box.height * current.layers.length),
             Math.floor((event.clientX - box.left) / box.width * current.layers[0].length));
});

canvas.addEventListener('keydown', (event) => {
  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  const step = steps[event.key];
  if (!step) return;
  event.preventDefault();
  moveCursor((cursor?.layer ?? 0) + step[0], (cursor?.expert ?? 0) + step[1]);
});

toggle.addEventListener('click', () => {
  const shown = section.classList.toggle('shown');
  toggle.setAttribute('aria-expanded', String(shown));
  toggle.textContent = shown ? 'Chat' : 'Placement';
  drawMap();
});

async function problemOf(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `the server answered ${response.status}`;
}

async function update() {
  let response;
  try {
    response = await request('/v1/placement');
  } catch {
    setStatus('the server does not answer', true);
    return;
  }
  if (!response.ok) {
    setStatus(await problemOf(response), true);
    return;
  }
  const answer = await response.json();
  answer.time = performance.now();
  if (current?.fingerprint === answer.fingerprint) last = current;
  else last = null;
  current = answer;
  setStatus(answer.model);
  setText('placement-summary', `${answer.units} experts, path ${answer.path}, plan ${answer.fingerprint}`);
  traffic = countTraffic();
  drawTargets(last ? (answer.time - last.time) / 1000 : 0);
  drawSpeeds();
  drawMap();
  describeCell();
}

async function run() {
  for (;;) {
    if (!document.hidden) await update();
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

window.addEventListener('resize', drawMap);
document.addEventListener('themechange', drawMap);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawMap);
run();
