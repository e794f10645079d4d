// The official clients against a running server. The model is a random one: what is tested is the
// interface, not what the model says.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

import {eventually, startServer} from './server.mjs';

const messages = [{role: 'user', content: 'Hello'}];
const parameters = {
  type: 'object',
  properties: {city: {enum: ['Oslo', 'Rome']}},
  required: ['city'],
  additionalProperties: false,
};
const tools = [{type: 'function', function: {name: 'weather', description: 'of a city', parameters}}];

let server, openai, anthropic;

before(async () => {
  server = await startServer(['--targets', 'cpu', '--api-key', 'sesame']);
  const options = {apiKey: 'sesame', maxRetries: 0};
  openai = new OpenAI({...options, baseURL: `${server.address}/v1`});
  anthropic = new Anthropic({...options, baseURL: server.address});
});

after(async () => {
  assert.equal(await server?.stop(), 0);
});

async function running() {
  const answer = await fetch(`${server.address}/v1/placement`,
                             {headers: {Authorization: 'Bearer sesame'}});
  return (await answer.json()).activity.running;
}

test('openai: chat', async () => {
  const chat = await openai.chat.completions.create(
      {model: 'demo', messages, max_tokens: 8, ignore_eos: true, logprobs: true, top_logprobs: 2});
  assert.equal(chat.object, 'chat.completion');
  assert.equal(chat.choices[0].finish_reason, 'length');
  assert.equal(chat.usage.completion_tokens, 8);
  assert.equal(chat.choices[0].logprobs.content[0].top_logprobs.length, 2);
});

test('openai: streaming with usage gives the same text', async () => {
  const request = {model: 'demo', messages, max_tokens: 24, seed: 5, ignore_eos: true};
  const whole = await openai.chat.completions.create(request);
  const stream = await openai.chat.completions.create(
      {...request, stream: true, stream_options: {include_usage: true}});
  let text = '';
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 24);
});

test('openai: tools, whole and streamed', async () => {
  const request = {model: 'demo', messages, tools, tool_choice: 'required', max_tokens: 200, seed: 1};
  const chat = await openai.chat.completions.create(request);
  const call = chat.choices[0].message.tool_calls[0];
  assert.equal(chat.choices[0].finish_reason, 'tool_calls');
  assert.equal(call.function.name, 'weather');
  assert.match(JSON.parse(call.function.arguments).city, /^(Oslo|Rome)$/);
  const final = await openai.chat.completions.stream(request).finalChatCompletion();
  assert.deepEqual(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments),
                   JSON.parse(call.function.arguments));
});

test('openai: the result of a tool goes back', async () => {
  const chat = await openai.chat.completions.create({
    model: 'demo', tools, max_tokens: 4, ignore_eos: true,
    messages: [
      ...messages,
      {role: 'assistant', content: null, tool_calls: [
        {id: 'c1', type: 'function', function: {name: 'weather', arguments: '{"city": "Oslo"}'}}]},
      {role: 'tool', tool_call_id: 'c1', content: 'rain'},
    ],
  });
  assert.equal(chat.usage.completion_tokens, 4);
});

test('openai: structured output', async () => {
  const chat = await openai.chat.completions.create({
    model: 'demo', messages, max_tokens: 200,
    response_format: {type: 'json_schema', json_schema: {name: 'place', strict: true, schema: parameters}},
  });
  assert.match(JSON.parse(chat.choices[0].message.content).city, /^(Oslo|Rome)$/);
});

test('openai: completions, models', async () => {
  const completion = await openai.completions.create({model: 'demo', prompt: 'Once', max_tokens: 5});
  assert.equal(completion.object, 'text_completion');
  const models = await openai.models.list();
  assert.equal(models.data[0].id, 'demo');
  assert.equal((await openai.models.retrieve('demo')).id, 'demo');
});

test('openai: errors are of the right class and name the field', async () => {
  await assert.rejects(openai.chat.completions.create({model: 'demo', messages, max_tokens: -1}),
                       (error) => error instanceof OpenAI.BadRequestError && error.param === 'max_tokens');
  await assert.rejects(openai.chat.completions.create({model: 'gpt', messages}),
                       (error) => error instanceof OpenAI.NotFoundError && error.code === 'model_not_found');
  const stranger = new OpenAI({apiKey: 'wrong', baseURL: `${server.address}/v1`, maxRetries: 0});
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

test('openai: an aborted stream ends the generation', async () => {
  const stream = await openai.chat.completions.create(
      {model: 'demo', messages, max_tokens: 1500, ignore_eos: true, stream: true});
  for await (const chunk of stream) {
    assert.ok(chunk);
    break;
  }
  stream.controller.abort();
  await eventually(async () => (await running()) === 0, 'the aborted generation ends');
});

test('anthropic: message, streaming, stop sequence', async () => {
  const request = {model: 'demo', messages, max_tokens: 12, ignore_eos: true, system: 'Be brief.'};
  const message = await anthropic.messages.create({...request, temperature: 0});
  assert.equal(message.type, 'message');
  assert.equal(message.stop_reason, 'max_tokens');
  assert.equal(message.usage.output_tokens, 12);
  const streamed = await anthropic.messages.stream({...request, temperature: 0}).finalMessage();
  assert.deepEqual(streamed.content, message.content);
  assert.equal(streamed.stop_reason, 'max_tokens');
});

test('anthropic: tools, whole and streamed', async () => {
  const request = {
    model: 'demo', messages, max_tokens: 200, temperature: 0, tool_choice: {type: 'any'},
    tools: [{name: 'weather', description: 'of a city', input_schema: parameters}],
  };
  for (const message of [await anthropic.messages.create(request),
                         await anthropic.messages.stream(request).finalMessage()]) {
    assert.equal(message.stop_reason, 'tool_use');
    const use = message.content.find((block) => block.type === 'tool_use');
    assert.match(use.input.city, /^(Oslo|Rome)$/);
  }
});

test('anthropic: count, errors, abort', async () => {
  const count = await anthropic.messages.countTokens({model: 'demo', messages});
  assert.ok(count.input_tokens > 5);
  await assert.rejects(anthropic.messages.create({model: 'demo', messages: [], max_tokens: 5}),
                       Anthropic.BadRequestError);
  const stream = anthropic.messages.stream({model: 'demo', messages, max_tokens: 1500, ignore_eos: true});
  await new Promise((resolve) => stream.once('text', resolve));
  stream.abort();
  await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
  await eventually(async () => (await running()) === 0, 'the aborted generation ends');
});
