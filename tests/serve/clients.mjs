/* The official clients against a running server: what they make of every endpoint, stream, error and abort.
 *   node clients.mjs URL          (openai, @anthropic-ai/sdk, ai, @ai-sdk/openai-compatible beside node_modules)
 * A line "ok NAME" or "not ok NAME: why" for each case. The server runs plainsong-tiny, so that what is compared is form and
 * bytes, never wit. */
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const url = process.argv[2];
const require = createRequire(resolve(process.argv[3], 'package.json'));
const load = async name => import(pathToFileURL(require.resolve(name)));
const { default: OpenAI } = await load('openai');
const { default: Anthropic } = await load('@anthropic-ai/sdk');
const { streamText, generateText, tool, jsonSchema, Output, stepCountIs } = await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: 'unused', maxRetries: 0 });
const model = 'plainsong-tiny-q4_0';
const hello = [{ role: 'user', content: 'Tell me a tale about a fox and a lantern in the village by the river, with snow on every roof.' }];
let failed = 0;

async function test(name, fn) {
    try {
        await fn();
        console.log(`ok ${name}`);
    } catch (e) {
        failed++;
        console.log(`not ok ${name}: ${String(e.message).replace(/\s+/g, ' ').slice(0, 400)}`);
        console.log(String(e.stack).split('\n').slice(0, 6).map(l => `# ${l}`).join('\n'));
    }
}

const post = (path, body, more = {}) => fetch(url + path, {
    method: 'POST', headers: { 'Content-Type': 'application/json' },
    body: typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body), ...more,
});
const postJson = async (path, body) => (await post(path, body)).json();
const metrics = async () => Object.fromEntries((await (await fetch(`${url}/metrics`)).text()).split('\n')
    .filter(l => l && l[0] !== '#').map(l => [l.slice(0, l.lastIndexOf(' ')), Number(l.slice(l.lastIndexOf(' ') + 1))]));

async function idle() { // until nothing runs; counters return to zero
    for (let i = 0; i < 400; i++) {
        const s = await (await fetch(`${url}/slots`)).json();
        if (s.active === 0 && s.queued === 0 && s.requests === 0) return;
        await new Promise(r => setTimeout(r, 25));
    }
    assert.fail('slots are still taken after 10 s');
}

async function rejects(promise, status, param, code) {
    try {
        await promise;
    } catch (e) {
        assert.equal(e.status, status, e.message);
        if (param !== undefined) assert.equal(e.param ?? e.error?.param, param);
        if (code !== undefined) assert.equal(e.code ?? e.error?.code, code);
        return e;
    }
    assert.fail('not refused');
}

/* ---- chat ---- */

const chat = more => openai.chat.completions.create({ model, messages: hello, max_tokens: 24, temperature: 0, ...more });
let greedy;

await test('chat: one object', async () => {
    const r = await chat();
    greedy = r.choices[0].message.content;
    assert.equal(r.object, 'chat.completion');
    assert.match(r.id, /^chatcmpl-/);
    assert.equal(r.model, model);
    assert.equal(r.choices.length, 1);
    assert.equal(r.choices[0].message.role, 'assistant');
    assert.ok(greedy.length > 10);
    assert.equal(r.choices[0].finish_reason, 'length');
    assert.equal(r.usage.completion_tokens, 24);
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + 24);
    assert.ok(r.usage.prompt_tokens_details.cached_tokens >= 0);
    assert.match(r.system_fingerprint, /^plainsong-[0-9a-f]{16}-c\d+-cpu$/);
    assert.ok(Math.abs(r.created - Date.now() / 1000) < 60);
    for (const k of ['queue_ms', 'prompt_ms', 'decode_ms', 'batch_width']) assert.ok(r.timings[k] >= 0, k);
    assert.ok(r.timings.batch_width >= 1);
});

await test('chat: a stream joins to the same text, in the shapes clients depend on', async () => {
    let text = '', finals = 0, chunks = 0, usage;
    for await (const c of await chat({ stream: true, stream_options: { include_usage: true } })) {
        assert.equal(c.object, 'chat.completion.chunk');
        if (c.choices.length === 0) {
            assert.equal(finals, 1);
            usage = c.usage;
            continue;
        }
        assert.equal(usage, undefined);
        assert.equal(c.usage ?? null, null);
        const { delta, finish_reason } = c.choices[0];
        if (chunks++ === 0) assert.equal(delta.role, 'assistant');
        if (finish_reason !== null) {
            finals++;
            assert.equal(finish_reason, 'length');
        }
        text += delta.content ?? '';
    }
    assert.equal(text, greedy);
    assert.equal(finals, 1);
    assert.equal(usage.completion_tokens, 24);
    assert.equal(usage.prompt_tokens_details.cached_tokens > 0, true);
});

await test('chat: raw stream ends with [DONE] and has no usage unless asked', async () => {
    const r = await post('/v1/chat/completions', { messages: hello, max_tokens: 4, temperature: 0, stream: true });
    assert.equal(r.status, 200);
    assert.match(r.headers.get('content-type'), /^text\/event-stream/);
    const events = (await r.text()).split('\n\n').filter(Boolean);
    assert.equal(events.at(-1), 'data: [DONE]');
    for (const e of events.slice(0, -1)) assert.equal(JSON.parse(e.slice(6)).choices.length, 1);
});

await test('chat: the seed used is returned and gives the same answer again', async () => {
    const a = await chat({ temperature: 1 }), b = await chat({ temperature: 1, seed: a.seed });
    assert.ok(Number.isSafeInteger(a.seed));
    assert.equal(b.seed, a.seed);
    assert.equal(b.choices[0].message.content, a.choices[0].message.content);
    const c = await chat({ temperature: 1 });
    assert.notEqual(c.seed, a.seed);
});

await test('chat: n answers share one prompt and differ; each equals itself again', async () => {
    await idle();
    const long = [{ role: 'user', content: `Tell me a tale about ${Math.random()} foxes and a lantern in the village by the river, with snow on every roof and ice on the pond.` }];
    const before = await metrics();
    const a = await chat({ messages: long, n: 4, temperature: 1, seed: 7 });
    const after = await metrics();
    assert.deepEqual(a.choices.map(c => c.index), [0, 1, 2, 3]);
    assert.equal(new Set(a.choices.map(c => c.message.content)).size, 4);
    const read = after.plainsong_prompt_rows_total - before.plainsong_prompt_rows_total;
    assert.ok(read < 2 * a.usage.prompt_tokens, `${read} rows were read for a prompt of ${a.usage.prompt_tokens}`);
    assert.equal(a.usage.completion_tokens, 96);
    const b = await chat({ messages: long, n: 4, temperature: 1, seed: 7 });
    assert.deepEqual(b.choices.map(c => c.message.content), a.choices.map(c => c.message.content));
    const texts = ['', '', '', ''], ends = [0, 0, 0, 0];
    for await (const c of await chat({ messages: long, n: 4, temperature: 1, seed: 7, stream: true }))
        for (const o of c.choices) {
            texts[o.index] += o.delta.content ?? '';
            ends[o.index] += o.finish_reason !== null;
        }
    assert.deepEqual(texts, a.choices.map(c => c.message.content));
    assert.deepEqual(ends, [1, 1, 1, 1]);
});

await test('chat: stop strings end the text, and nothing of them leaks', async () => {
    const stop = greedy.slice(9, 15);
    const want = greedy.slice(0, greedy.indexOf(stop));
    const r = await chat({ stop });
    assert.equal(r.choices[0].message.content, want);
    assert.equal(r.choices[0].finish_reason, 'stop');
    let text = '';
    for await (const c of await chat({ stop: ['never said', stop], stream: true })) text += c.choices[0].delta.content ?? '';
    assert.equal(text, want);
    const none = await chat({ stop: [greedy.slice(3, 6) + '\u0001'] });
    assert.equal(none.choices[0].message.content, greedy);
});

await test('chat: logprobs and top_logprobs', async () => {
    const r = await chat({ logprobs: true, top_logprobs: 3, max_tokens: 5 });
    const list = r.choices[0].logprobs.content;
    assert.equal(list.length, 5);
    for (const t of list) {
        assert.ok(t.logprob <= 0);
        assert.equal(t.top_logprobs.length, 3);
        assert.equal(t.top_logprobs[0].token, t.token); // greedy
        assert.ok(t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob);
    }
    assert.equal(Buffer.from(list.flatMap(t => t.bytes)).toString(), r.choices[0].message.content);
    const seen = [];
    for await (const c of await chat({ logprobs: true, top_logprobs: 3, max_tokens: 5, stream: true }))
        seen.push(...(c.choices[0].logprobs?.content ?? []));
    assert.deepEqual(seen, list);
});

await test('chat: logit_bias', async () => {
    const { tokens } = await postJson('/tokenize', { content: ' the' });
    const r = await chat({ logit_bias: { [tokens[0]]: 100 }, max_tokens: 3 });
    assert.equal(r.choices[0].message.content.trim(), 'the the the');
});

await test('chat: content as text parts, max_completion_tokens, any model name', async () => {
    const parts = [{ role: 'user', content: [{ type: 'text', text: hello[0].content }] }];
    const r = await openai.chat.completions.create({ model: 'gpt-4o', messages: parts, max_completion_tokens: 24, temperature: 0 });
    assert.equal(r.choices[0].message.content, greedy);
    assert.equal(r.model, 'gpt-4o');
});

await test('chat: unknown fields are ignored', async () => {
    const r = await chat({ user: 'x', metadata: { a: 'b' }, store: false, wholly_unknown: [1] });
    assert.equal(r.choices[0].message.content, greedy);
});

const weather = {
    type: 'function',
    function: { name: 'weather', description: 'of a city', parameters: { type: 'object', additionalProperties: false,
        properties: { city: { type: 'string', enum: ['Paris', 'Rome'] }, days: { type: 'integer', minimum: 1, maximum: 3 } },
        required: ['city', 'days'] } },
};
const clock = { type: 'function', function: { name: 'clock', parameters: { type: 'object', properties: {}, additionalProperties: false } } };

function checkWeather(text) {
    const o = JSON.parse(text);
    assert.deepEqual(Object.keys(o).sort(), ['city', 'days']);
    assert.ok(['Paris', 'Rome'].includes(o.city));
    assert.ok(Number.isInteger(o.days) && o.days >= 1 && o.days <= 3);
}

await test('chat: a tool call that must come', async () => {
    const r = await chat({ tools: [weather, clock], tool_choice: 'required', parallel_tool_calls: false, max_tokens: 200 });
    const calls = r.choices[0].message.tool_calls;
    assert.equal(r.choices[0].finish_reason, 'tool_calls');
    assert.equal(calls.length, 1);
    assert.equal(calls[0].type, 'function');
    if (calls[0].function.name === 'weather') checkWeather(calls[0].function.arguments);
    else assert.equal(calls[0].function.name, 'clock');
});

await test('chat: a named tool call, in deltas', async () => {
    const body = { tools: [weather, clock], tool_choice: { type: 'function', function: { name: 'weather' } }, max_tokens: 200,
        parallel_tool_calls: false };
    const whole = (await chat(body)).choices[0];
    checkWeather(whole.message.tool_calls[0].function.arguments);
    let args = '', first, finish;
    for await (const c of await chat({ ...body, stream: true })) {
        const d = c.choices[0];
        finish = d.finish_reason ?? finish;
        for (const t of d.delta.tool_calls ?? []) {
            assert.equal(t.index, 0);
            if (!first) {
                first = t;
                assert.equal(t.type, 'function');
                assert.equal(t.function.name, 'weather');
                assert.ok(t.id);
            } else {
                assert.equal(t.id ?? null, null);
            }
            args += t.function.arguments ?? '';
        }
    }
    assert.equal(finish, 'tool_calls');
    assert.equal(args, whole.message.tool_calls[0].function.arguments);
    const runner = await openai.chat.completions.stream({ model, messages: hello, temperature: 0, ...body }).finalChatCompletion();
    assert.equal(runner.choices[0].message.tool_calls[0].function.arguments, args);
});

await test('chat: a conversation with calls and their results goes on', async () => {
    const r = await chat({ tools: [weather], messages: [...hello,
        { role: 'assistant', content: null, tool_calls: [{ id: 'c1', type: 'function', function: { name: 'weather', arguments: '{"city":"Rome","days":1}' } }] },
        { role: 'tool', tool_call_id: 'c1', content: 'sunny' }, { role: 'user', content: 'So?' }] });
    assert.equal(r.choices.length, 1);
});

const tale = { type: 'object', additionalProperties: false, required: ['title', 'age', 'tags'],
    properties: { title: { type: 'string', maxLength: 20 }, age: { type: 'integer', minimum: 0, maximum: 99 },
        tags: { type: 'array', items: { enum: ['fox', 'lantern'] }, minItems: 1, maxItems: 2 } } };
function checkTale(text) {
    const o = JSON.parse(text);
    assert.deepEqual(Object.keys(o).sort(), ['age', 'tags', 'title']);
    assert.ok([...o.title].length <= 20);
    assert.ok(Number.isInteger(o.age) && o.age >= 0 && o.age <= 99);
    assert.ok(o.tags.length >= 1 && o.tags.length <= 2 && o.tags.every(t => ['fox', 'lantern'].includes(t)));
}

await test('chat: json_schema holds, greedy and seeded, whole and in pieces', async () => {
    const format = { type: 'json_schema', json_schema: { name: 'tale', strict: true, schema: tale } };
    for (const seed of [1, 2, 3, 4]) {
        const r = await chat({ response_format: format, max_tokens: 300, temperature: seed === 1 ? 0 : 1.5, seed });
        assert.equal(r.choices[0].finish_reason, 'stop');
        checkTale(r.choices[0].message.content);
    }
    let text = '';
    for await (const c of await chat({ response_format: format, max_tokens: 300, stream: true })) text += c.choices[0].delta.content ?? '';
    checkTale(text);
});

await test('chat: json_object is one', async () => {
    const r = await chat({ response_format: { type: 'json_object' }, max_tokens: 400, temperature: 0.5, seed: 5,
        logit_bias: {} });
    if (r.choices[0].finish_reason === 'stop') assert.equal(typeof JSON.parse(r.choices[0].message.content), 'object');
    assert.equal(r.choices[0].message.content.trimStart()[0], '{');
});

await test('chat: a schema that cannot be enforced is a 400 naming the keyword', async () => {
    const e = await rejects(chat({ response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'object',
        properties: { a: { not: { type: 'string' } } } } } } }), 400);
    assert.match(e.message, /\bnot\b/);
});

/* ---- completions ---- */

const complete = more => openai.completions.create({ model, prompt: 'Once upon a time', max_tokens: 12, temperature: 0, ...more });

await test('completions: a string, a list, token ids, lists of them', async () => {
    const a = await complete();
    assert.equal(a.object, 'text_completion');
    assert.equal(a.choices[0].finish_reason, 'length');
    const { tokens } = await postJson('/tokenize', { content: 'Once upon a time', add_special: true });
    const b = await complete({ prompt: tokens });
    assert.equal(b.choices[0].text, a.choices[0].text);
    const c = await complete({ prompt: ['Once upon a time', 'There was', 'Once upon a time'] });
    assert.equal(c.choices.length, 3);
    assert.equal(c.choices[0].text, a.choices[0].text);
    assert.equal(c.choices[2].text, a.choices[0].text);
    const d = await complete({ prompt: [tokens, tokens] });
    assert.equal(d.choices[1].text, a.choices[0].text);
    let text = '';
    for await (const e of await complete({ stream: true })) text += e.choices[0].text;
    assert.equal(text, a.choices[0].text);
});

await test('completions: n for each prompt, logprobs', async () => {
    const r = await complete({ prompt: ['A fox', 'A river'], n: 2, temperature: 1, seed: 3, logprobs: 2 });
    assert.deepEqual(r.choices.map(c => c.index), [0, 1, 2, 3]);
    for (const c of r.choices) {
        assert.equal(c.logprobs.tokens.length, 12);
        assert.equal(c.logprobs.token_logprobs.length, 12);
        assert.equal(c.logprobs.text_offset[0], 0);
    }
});

await test('tokenize and detokenize undo each other; pieces join', async () => {
    const text = 'Füchse 🦊 and 灯 — \u0301lantern\n';
    const { tokens } = await postJson('/tokenize', { content: text });
    assert.equal((await postJson('/detokenize', { tokens })).content, text);
    const pieces = (await postJson('/tokenize', { content: text, with_pieces: true })).tokens;
    assert.deepEqual(pieces.map(p => p.id), tokens);
    assert.equal(Buffer.concat(pieces.map(p => Buffer.from(p.piece))).toString(), text);
});

await test('apply-template and count_tokens agree with the prompt that is read', async () => {
    const { prompt } = await postJson('/apply-template', { messages: hello });
    assert.ok(prompt.includes(hello[0].content));
    const { tokens } = await postJson('/tokenize', { content: prompt });
    const r = await chat({ max_tokens: 1 });
    assert.equal(r.usage.prompt_tokens, tokens.length);
    const n = await anthropic.messages.countTokens({ model, messages: hello });
    assert.equal(n.input_tokens, tokens.length);
});

await test('models: listed and by name', async () => {
    const list = await openai.models.list();
    assert.equal(list.data.length, 1);
    assert.equal(list.data[0].id, model);
    assert.equal((await openai.models.retrieve(model)).id, model);
    await rejects(openai.models.retrieve('another'), 404);
    const a = await anthropic.models.list();
    assert.equal(a.data[0].id, model);
});

/* ---- responses ---- */

const respond = more => openai.responses.create({ model, input: hello[0].content, max_output_tokens: 24, temperature: 0, ...more });

await test('responses: one object', async () => {
    const r = await respond();
    assert.equal(r.object, 'response');
    assert.equal(r.status, 'incomplete');
    assert.equal(r.incomplete_details.reason, 'max_output_tokens');
    assert.equal(r.output_text, greedy);
    assert.equal(r.output[0].type, 'message');
    assert.equal(r.usage.output_tokens, 24);
});

await test('responses: all events of a stream, in order', async () => {
    const seen = [];
    let text = '', done, number = 0;
    for await (const e of await respond({ stream: true })) {
        assert.equal(e.sequence_number, number++);
        seen.push(e.type);
        if (e.type === 'response.output_text.delta') text += e.delta;
        if (e.type === 'response.output_text.done') assert.equal(e.text, text);
        if (e.type === 'response.incomplete') done = e.response;
    }
    const order = [...new Set(seen)];
    assert.deepEqual(order, ['response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added',
        'response.output_text.delta', 'response.output_text.done', 'response.content_part.done', 'response.output_item.done',
        'response.incomplete']);
    assert.equal(text, greedy);
    assert.equal(done.output[0].content[0].text, text);
    const final = await openai.responses.stream({ model, input: hello[0].content, max_output_tokens: 24, temperature: 0 }).finalResponse();
    assert.equal(final.output_text, greedy);
});

await test('responses: a function call with its events, and a schema', async () => {
    const tools = [{ type: 'function', name: 'weather', strict: true, parameters: weather.function.parameters }];
    const seen = [];
    let args = '';
    for await (const e of await respond({ tools, tool_choice: { type: 'function', name: 'weather' }, parallel_tool_calls: false,
        max_output_tokens: 200, stream: true })) {
        seen.push(e.type);
        if (e.type === 'response.function_call_arguments.delta') args += e.delta;
        if (e.type === 'response.function_call_arguments.done') assert.equal(e.arguments, args);
    }
    assert.ok(seen.includes('response.function_call_arguments.done'));
    assert.equal(seen.at(-1), 'response.completed');
    checkWeather(args);
    const r = await respond({ max_output_tokens: 300, text: { format: { type: 'json_schema', name: 'tale', strict: true, schema: tale } } });
    assert.equal(r.status, 'completed');
    checkTale(r.output_text);
});

/* ---- messages ---- */

const message = more => ({ model, max_tokens: 24, temperature: 0, messages: hello, ...more });

await test('messages: one object and a stream', async () => {
    const r = await anthropic.messages.create(message());
    assert.equal(r.type, 'message');
    assert.equal(r.role, 'assistant');
    assert.equal(r.stop_reason, 'max_tokens');
    assert.equal(r.content[0].text, greedy);
    assert.equal(r.usage.output_tokens, 24);
    const s = anthropic.messages.stream(message());
    let text = '';
    s.on('text', t => (text += t));
    const final = await s.finalMessage();
    assert.equal(text, greedy);
    assert.equal(final.content[0].text, greedy);
    assert.equal(final.stop_reason, 'max_tokens');
});

await test('messages: system, stop_sequences', async () => {
    const stop = greedy.slice(9, 15);
    const r = await anthropic.messages.create(message({ stop_sequences: [stop] }));
    assert.equal(r.stop_reason, 'stop_sequence');
    assert.equal(r.stop_sequence, stop);
    assert.equal(r.content[0].text, greedy.slice(0, greedy.indexOf(stop)));
    await anthropic.messages.create(message({ system: [{ type: 'text', text: 'Be short.' }] }));
});

await test('messages: a stream with tools', async () => {
    const tools = [{ name: 'weather', description: 'of a city', input_schema: weather.function.parameters }];
    const events = [];
    const s = anthropic.messages.stream(message({ tools, max_tokens: 200, tool_choice: { type: 'tool', name: 'weather', disable_parallel_tool_use: true } }));
    s.on('streamEvent', e => events.push(e.type));
    const r = await s.finalMessage();
    const use = r.content.find(c => c.type === 'tool_use');
    assert.equal(use.name, 'weather');
    checkWeather(JSON.stringify(use.input));
    assert.equal(r.stop_reason, 'tool_use');
    assert.equal(events[0], 'message_start');
    assert.equal(events.at(-1), 'message_stop');
    const more = await anthropic.messages.create(message({ tools, messages: [...hello, { role: 'assistant', content: r.content },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'rain' }] }] }));
    assert.equal(more.type, 'message');
});

await test('messages: errors in their form', async () => {
    const e = await rejects(anthropic.messages.create({ model, max_tokens: 'many', messages: hello }), 400);
    assert.equal(e.error.type, 'error');
    assert.equal(e.error.error.type, 'invalid_request_error');
    assert.match(e.message, /max_tokens/);
    await rejects(anthropic.messages.create(message({ max_tokens: 20000 })), 400);
});

/* ---- the AI SDK ---- */

const provider = createOpenAICompatible({ name: 'plainsong', baseURL: `${url}/v1`, includeUsage: true, supportsStructuredOutputs: true });
const ask = { model: provider(model), prompt: hello[0].content, temperature: 0, maxOutputTokens: 24, maxRetries: 0 };

await test('ai: generateText, streamText', async () => {
    const r = await generateText(ask);
    assert.equal(r.text, greedy);
    assert.equal(r.finishReason, 'length');
    assert.equal(r.usage.outputTokens, 24);
    const s = streamText(ask);
    let text = '';
    for await (const t of s.textStream) text += t;
    assert.equal(text, greedy);
    assert.equal((await s.usage).outputTokens, 24);
});

await test('ai: tools and structured output', async () => {
    const tools = { weather: tool({ description: 'of a city', inputSchema: jsonSchema(weather.function.parameters) }) };
    const r = await generateText({ ...ask, maxOutputTokens: 200, tools, toolChoice: { type: 'tool', toolName: 'weather' }, stopWhen: stepCountIs(1) });
    assert.equal(r.finishReason, 'tool-calls');
    checkWeather(JSON.stringify(r.toolCalls[0].input));
    const s = streamText({ ...ask, maxOutputTokens: 200, tools, toolChoice: 'required', stopWhen: stepCountIs(1) });
    let n = 0;
    for await (const p of s.fullStream) {
        assert.notEqual(p.type, 'error', String(p.error));
        n += p.type === 'tool-call';
    }
    assert.ok(n >= 1);
    const o = await generateText({ ...ask, maxOutputTokens: 300, output: Output.object({ schema: jsonSchema(tale) }) });
    checkTale(JSON.stringify(o.output));
});

/* ---- errors ---- */

await test('errors: each wrong type is a 400 that names its field', async () => {
    const wrong = { messages: 'x', model: 1, temperature: 'hot', top_p: [], min_p: 2, top_k: 1.5, max_tokens: '9', max_completion_tokens: {},
        n: 0, stop: 5, seed: 'x', logprobs: 'yes', top_logprobs: 99, logit_bias: [], stream: 'true', stream_options: 1, tools: {},
        tool_choice: 'sometimes', response_format: 'json', presence_penalty: 9, frequency_penalty: 'x', repeat_penalty: 'x',
        repeat_last_n: 'x', chat_template_kwargs: 3, parallel_tool_calls: 'no' };
    const bad = [];
    for (const [field, value] of Object.entries(wrong)) {
        const r = await post('/v1/chat/completions', { messages: hello, max_tokens: 2, logprobs: true, ...{ [field]: value } });
        const j = await r.json();
        if (r.status !== 400 || j.error.param?.split(/[.[]/)[0] !== field || j.error.type !== 'invalid_request_error' || !j.error.message)
            bad.push(`${field}: ${r.status} ${JSON.stringify(j).slice(0, 120)}`);
    }
    assert.deepEqual(bad, []);
});

await test('errors: overflow of the context is a 400, also when streaming', async () => {
    const long = [{ role: 'user', content: 'word '.repeat(20000) }];
    for (const stream of [false, true]) {
        await rejects(chat({ messages: long, stream }), 400, 'messages', 'context_length_exceeded');
        await rejects(chat({ max_tokens: 1 << 30, stream }), 400, 'max_tokens', 'context_length_exceeded');
        await rejects(complete({ prompt: 'word '.repeat(20000), stream }), 400, 'prompt', 'context_length_exceeded');
    }
    const r = await post('/v1/messages', { ...message({ messages: long }), stream: true });
    assert.equal(r.status, 400);
    assert.equal((await r.json()).type, 'error');
});

await test('errors: 404, 405, 413', async () => {
    assert.equal((await post('/v1/nothing', {})).status, 404);
    assert.equal((await fetch(`${url}/v1/chat/completions`)).status, 405);
    assert.equal((await post('/v1/models', {})).status, 405);
    const big = await post('/v1/chat/completions', `{"messages":"${'x'.repeat(17 << 20)}"}`);
    assert.equal(big.status, 413);
    await big.text();
});

await test('errors: no JSON, invalid UTF-8, too deep, keys twice, empty', async () => {
    const bad = async (body, re) => {
        const r = await post('/v1/chat/completions', body), j = await r.json();
        assert.equal(r.status, 400, JSON.stringify(j));
        assert.match(j.error.message, re);
    };
    await bad('', /./);
    await bad('{', /./);
    await bad('[]', /object/);
    await bad(Buffer.concat([Buffer.from('{"messages":"'), Buffer.from([0xC3, 0x28]), Buffer.from('"}')]), /UTF-8/i);
    await bad(`{"a":${'['.repeat(100000)}`, /64/);
    await bad(`{"a":${'['.repeat(70)}${']'.repeat(70)}}`, /64/);
    await bad('{"seed":1,"seed":2}', /./);
    await bad(JSON.stringify({ messages: [] }), /messages/);
});

/* ---- abort ---- */

await test('abort in the middle: the slot is free, others go on', async () => {
    await idle();
    const control = new AbortController();
    const s = await openai.chat.completions.create({ model, messages: hello, max_tokens: 400, stream: true, temperature: 0,
        ...{ ignore_eos: true } }, { signal: control.signal });
    let n = 0;
    try {
        for await (const c of s) if (++n === 5) control.abort();
    } catch { /* as the client pleases */ }
    await idle();
    const m = anthropic.messages.stream(message({ max_tokens: 400 }));
    m.on('text', () => m.abort());
    await m.finalMessage().catch(() => {});
    await idle();
    assert.equal((await chat()).choices[0].message.content, greedy);
    assert.ok((await metrics()).plainsong_cancelled_total >= 1);
});

process.exit(failed ? 1 : 0);
