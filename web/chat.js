// The conversation: sends it, shows the answer while it comes, stops it.
import {request, requestFields, settings} from './settings.js';

const messages = document.getElementById('messages');
const composer = document.getElementById('composer');
const prompt = document.getElementById('prompt');
const send = document.getElementById('send');
const stop = document.getElementById('stop');
const announcement = document.getElementById('announcement');

let conversation = [];  // {role, content}
let running = null;     // AbortController of the answer that is coming

DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.tagName === 'A') {
    node.setAttribute('target', '_blank');
    node.setAttribute('rel', 'noopener noreferrer');
  }
});

function showMarkdown(element, text) {
  element.innerHTML = DOMPurify.sanitize(marked.parse(text, {gfm: true, breaks: true}));
}

function addMessage(role, text) {
  const item = document.createElement('li');
  item.className = `message ${role}`;
  const who = document.createElement('span');
  who.className = 'hidden';
  who.textContent = role === 'user' ? 'You: ' : 'Model: ';
  const body = document.createElement('div');
  body.className = 'body';
  if (role === 'user') body.textContent = text;
  item.append(who, body);
  messages.append(item);
  messages.scrollTop = messages.scrollHeight;
  return item;
}

// Data of server-sent events, as they come.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith('data: ')) continue;
      const data = block.slice(6);
      if (data === '[DONE]') return;
      yield JSON.parse(data);
    }
  }
}

class Answer {
  constructor() {
    this.item = addMessage('assistant', '');
    this.body = this.item.querySelector('.body');
    this.content = '';
    this.reasoning = '';
    this.drawn = 0;
    this.waiting = false;
  }

  add(delta) {
    this.content += delta.content ?? '';
    this.reasoning += delta.reasoning_content ?? '';
    // Rendering all of it for every token would take longer the longer it is.
    if (this.waiting) return;
    this.waiting = true;
    setTimeout(() => requestAnimationFrame(() => this.draw()), Math.min(400, this.drawn * 4));
  }

  draw() {
    this.waiting = false;
    const begin = performance.now();
    const atEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 60;
    if (this.reasoning) this.drawReasoning();
    showMarkdown(this.body, this.content);
    if (atEnd) messages.scrollTop = messages.scrollHeight;
    this.drawn = performance.now() - begin;
  }

  drawReasoning() {
    let details = this.item.querySelector('.reasoning');
    if (!details) {
      details = document.createElement('details');
      details.className = 'reasoning';
      details.append(document.createElement('summary'), document.createElement('pre'));
      this.body.before(details);
    }
    details.querySelector('summary').textContent = this.content ? 'Thoughts' : 'Thinking…';
    details.querySelector('pre').textContent = this.reasoning;
  }

  note(text, retry) {
    const note = document.createElement('p');
    note.className = 'note';
    note.textContent = text;
    if (retry) {
      const again = document.createElement('button');
      again.type = 'button';
      again.textContent = 'Again';
      again.addEventListener('click', retry);
      note.append(again);
    }
    this.item.append(note);
    messages.scrollTop = messages.scrollHeight;
  }
}

function setRunning(controller) {
  running = controller;
  send.hidden = Boolean(controller);
  stop.hidden = !controller;
}

function describe(usage, timings, finish) {
  const parts = [];
  if (usage) {
    parts.push(`${usage.completion_tokens} tokens`);
    if (timings?.decode_ms > 0 && usage.completion_tokens > 1) {
      parts.push(`${((usage.completion_tokens - 1) / timings.decode_ms * 1000).toFixed(1)} tok/s`);
    }
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${usage.prompt_tokens}${cached ? ` (${cached} reused)` : ''}`);
  }
  if (finish === 'length') parts.push('cut off at the limit');
  return parts.join(' · ');
}

async function answer() {
  const controller = new AbortController();
  setRunning(controller);
  const shown = new Answer();
  announcement.textContent = 'The model is answering.';
  const system = settings().system ? [{role: 'system', content: settings().system}] : [];
  let usage, timings, finish, problem;
  try {
    const response = await request('/v1/chat/completions', {
      method: 'POST',
      headers: {'Content-Type': 'application/json'},
      signal: controller.signal,
      body: JSON.stringify({
        messages: [...system, ...conversation],
        stream: true,
        stream_options: {include_usage: true},
        ...requestFields(),
      }),
    });
    if (!response.ok) {
      const body = await response.json().catch(() => null);
      throw new Error(body?.error?.message ?? `the server answered ${response.status}`);
    }
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      timings = event.timings ?? timings;
      const choice = event.choices?.[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      shown.add(choice.delta);
    }
  } catch (error) {
    problem = error.name === 'AbortError' ? 'stopped' : error.message;
  }
  shown.draw();
  setRunning(null);
  if (shown.content) conversation.push({role: 'assistant', content: shown.content});
  shown.note(problem ?? describe(usage, timings, finish), () => again(shown));
  if (problem && problem !== 'stopped') shown.item.classList.add('failed');
  announcement.textContent = problem ? `Ended: ${problem}` : 'The answer is complete.';
}

// Drops an answer and all behind it, and asks for another.
function again(shown) {
  if (running) return;
  while (shown.item.nextSibling) shown.item.nextSibling.remove();
  shown.item.remove();
  const users = messages.querySelectorAll('.message.user').length;
  let seen = 0;
  conversation = conversation.filter((message) => {
    if (message.role === 'user') seen += 1;
    return seen < users || (message.role === 'user' && seen === users);
  });
  answer();
}

composer.addEventListener('submit', (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = '';
  conversation.push({role: 'user', content: text});
  addMessage('user', text);
  answer();
});

prompt.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  composer.requestSubmit();
});

stop.addEventListener('click', () => {
  running?.abort();
  prompt.focus();
});

document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && running && !document.querySelector('dialog[open]')) running.abort();
});

document.getElementById('new-chat').addEventListener('click', () => {
  running?.abort();
  conversation = [];
  messages.replaceChildren();
  prompt.focus();
});

prompt.focus();
