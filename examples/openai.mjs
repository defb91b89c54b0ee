// OpenAI's client for JavaScript against plainsong: a stream, a schema, a tool, an answer again by its seed.
//   npm install openai && node examples/openai.mjs [URL]        (first, in another terminal: sh run.sh)
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: `${process.argv[2] ?? 'http://127.0.0.1:8080'}/v1`, apiKey: process.env.PLAINSONG_KEY ?? 'none' });
const model = 'plainsong'; // any name, unless the server has --strict-model
const user = content => [{ role: 'user', content }];

const stream = await client.chat.completions.create({
    model, messages: user('Tell me a tale about a fox and a lantern.'), temperature: 0, max_tokens: 60,
    stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
    process.stdout.write(chunk.choices[0]?.delta.content ?? '');
    if (chunk.usage) console.log(`\n-- ${chunk.usage.completion_tokens} tokens, batch width ${chunk.timings.batch_width}`);
}

const wears = await client.chat.completions.create({
    model, messages: user('Reply as JSON with keys name and colour. Mira wears teal.'), temperature: 0,
    response_format: { type: 'json_schema', json_schema: { name: 'wears', strict: true, schema: {
        type: 'object', required: ['name', 'colour'], additionalProperties: false,
        properties: { name: { type: 'string' }, colour: { enum: ['red', 'teal', 'blue'] } },
    } } },
});
console.log(JSON.parse(wears.choices[0].message.content));

const called = await client.chat.completions.create({
    model, messages: user('How is the weather in Oslo?'), temperature: 0, tool_choice: 'required', parallel_tool_calls: false,
    tools: [{ type: 'function', function: { name: 'weather', strict: true, parameters: {
        type: 'object', required: ['city'], additionalProperties: false, properties: { city: { type: 'string', maxLength: 20 } },
    } } }],
});
console.log(called.choices[0].message.tool_calls[0].function);

const once = await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 12, temperature: 1 });
const again = await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 12, temperature: 1, seed: once.seed });
console.log(`seed ${once.seed} again: ${once.choices[0].text === again.choices[0].text ? 'equal' : 'different'}`);

const response = await client.responses.create({ model, input: 'What is 5 + 6?', temperature: 0 });
console.log(response.output_text);

try {
    await client.chat.completions.create({ model, messages: user('x'), temperature: 'hot' });
} catch (e) {
    console.log(e.status, e.param, e.message);
}
