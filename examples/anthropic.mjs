// Anthropic's client for JavaScript against plainsong: a stream, and a tool whose result goes back.
//   npm install @anthropic-ai/sdk && node examples/anthropic.mjs [URL]        (first, in another terminal: sh run.sh)
import Anthropic from '@anthropic-ai/sdk';

const client = new Anthropic({ baseURL: process.argv[2] ?? 'http://127.0.0.1:8080', apiKey: process.env.PLAINSONG_KEY ?? 'none' });
const model = 'plainsong'; // any name, unless the server has --strict-model
const messages = [{ role: 'user', content: 'How is the weather in Oslo?' }];

const stream = client.messages.stream({ model, max_tokens: 60, temperature: 0,
    messages: [{ role: 'user', content: 'Tell me a tale about a fox and a lantern.' }] });
stream.on('text', text => process.stdout.write(text));
const final = await stream.finalMessage();
console.log(`\n-- ${final.stop_reason}, ${final.usage.output_tokens} tokens`);

const tools = [{ name: 'weather', input_schema: {
    type: 'object', required: ['city'], additionalProperties: false, properties: { city: { type: 'string', maxLength: 20 } },
} }];
const asked = await client.messages.create({ model, max_tokens: 200, temperature: 0, messages, tools,
    tool_choice: { type: 'tool', name: 'weather', disable_parallel_tool_use: true } });
const use = asked.content.find(block => block.type === 'tool_use');
console.log(use.name, use.input);

messages.push({ role: 'assistant', content: asked.content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'rain' }] });
const answer = await client.messages.create({ model, max_tokens: 40, temperature: 0, messages, tools });
console.log(answer.content[0]);
console.log(await client.messages.countTokens({ model, messages }));
