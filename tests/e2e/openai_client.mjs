// Drives the official npm client; prints one JSON object with everything it got.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 20000 });
const messages = [{ role: "user", content: "hello" }];
const result = {};

const whole = await client.chat.completions.create({ model, messages });
result.whole = whole.choices[0].message.content;
result.finish = whole.choices[0].finish_reason;

result.streamed = "";
const chunks = await client.chat.completions.create({
  model, messages, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of chunks) {
  result.streamed += chunk.choices[0]?.delta?.content ?? "";
  result.usage = chunk.usage ?? result.usage;
}

const helper = client.chat.completions.stream({ model, messages });
result.helper = (await helper.finalChatCompletion()).choices[0].message.content;

result.completion = (await client.completions.create({ model, prompt: "x", max_tokens: 100 })).choices[0].text;
result.response = (await client.responses.create({ model, input: "hello" })).output_text;
result.responseStreamed = "";
for await (const event of await client.responses.create({ model, input: "hello", stream: true })) {
  if (event.type === "response.output_text.delta") result.responseStreamed += event.delta;
  if (event.type === "response.completed") result.status = event.response.status;
}
result.models = (await client.models.list()).data.map((entry) => entry.id);
try {
  await client.chat.completions.create({ model: "other", messages });
} catch (error) {
  result.error = { status: error.status, code: error.code, kind: error.constructor.name };
}
console.log(JSON.stringify(result));
