// curl against a running server.
import assert from 'node:assert/strict';
import {execFile} from 'node:child_process';
import {after, before, test} from 'node:test';
import {promisify} from 'node:util';

import {activity, eventually, startServer} from './server.mjs';

const run = promisify(execFile);
const json = ['-H', 'Content-Type: application/json'];

let server;

before(async () => {
  server = await startServer(['--targets', 'cpu']);
});

after(async () => {
  assert.equal(await server?.stop(), 0);
});

function body(more) {
  return JSON.stringify({messages: [{role: 'user', content: 'Hello'}], ignore_eos: true, ...more});
}

test('curl: a chat', async () => {
  const {stdout} = await run('curl', ['-sS', '--fail-with-body', ...json, '-d', body({max_tokens: 5}),
                                      `${server.address}/v1/chat/completions`]);
  assert.equal(JSON.parse(stdout).usage.completion_tokens, 5);
});

test('curl: a stream', async () => {
  const {stdout} = await run('curl', ['-sSN', ...json, '-d', body({max_tokens: 5, stream: true}),
                                      `${server.address}/v1/chat/completions`]);
  assert.ok(stdout.startsWith('data: {'));
  assert.ok(stdout.endsWith('data: [DONE]\n\n'));
});

test('curl: Ctrl-C ends the generation', async () => {
  const controller = new AbortController();
  const stream = run('curl', ['-sSN', ...json, '-d', body({max_tokens: 1900, stream: true}),
                              `${server.address}/v1/chat/completions`],
                     {signal: controller.signal, killSignal: 'SIGINT'});
  stream.catch(() => {});
  await eventually(async () => (await activity(server.address)).running === 1, 'it runs');
  controller.abort();
  await eventually(async () => (await activity(server.address)).running === 0, 'it ends');
});
