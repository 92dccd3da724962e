// Asks the gateway through the Node clients people use, each at its own surface. Reads one job as JSON from standard input, writes one JSON
// array of results, in the order of the job's questions, to standard output:
//
//   {"questions": [{"client", "baseURL", "token", "model", "way": "stream" | "whole"}]}
//
// A result is {"text", "calls": [{"name", "input"}], "input", "output", "stop", "failure": {"status", "message", "class"} | null}. It judges
// nothing.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { GoogleGenAI } from '@google/genai';
import { generateText, streamText, tool, jsonSchema } from 'ai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { ChatAnthropic } from '@langchain/anthropic';

globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand among the results

const atOnce = 4;
const asked = 'Hello.';
const parameters = { type: 'object', properties: { slide_id: { type: 'string' } } };
const description = 'Reads a slide.';

const nothing = () => ({ text: '', calls: [], input: 0, output: 0, stop: '', failure: null });

async function anthropic(q) {
  const client = new Anthropic({ baseURL: q.baseURL, apiKey: q.token, maxRetries: 0 });
  const params = { model: q.model, max_tokens: 64, tools: [{ name: 'slide-read', description, input_schema: parameters }], messages: [{ role: 'user', content: asked }] };
  const m = q.way === 'whole' ? await client.messages.create(params) : await client.messages.stream(params).finalMessage();
  const r = nothing();
  for (const b of m.content) {
    if (b.type === 'text') r.text += b.text;
    if (b.type === 'tool_use') r.calls.push({ name: b.name, input: b.input });
  }
  const u = m.usage;
  return { ...r, stop: m.stop_reason, input: u.input_tokens + (u.cache_read_input_tokens ?? 0) + (u.cache_creation_input_tokens ?? 0), output: u.output_tokens };
}

const openai = (q) => new OpenAI({ baseURL: `${q.baseURL}/v1`, apiKey: q.token, maxRetries: 0 });

async function openaiChat(q) {
  const params = { model: q.model, tools: [{ type: 'function', function: { name: 'slide-read', description, parameters } }], messages: [{ role: 'user', content: asked }] };
  const client = openai(q);
  const c = q.way === 'whole'
    ? await client.chat.completions.create(params)
    : await client.chat.completions.stream({ ...params, stream_options: { include_usage: true } }).finalChatCompletion();
  const { message, finish_reason } = c.choices[0];
  return {
    ...nothing(), text: message.content ?? '', stop: finish_reason, input: c.usage?.prompt_tokens, output: c.usage?.completion_tokens,
    calls: (message.tool_calls ?? []).map((t) => ({ name: t.function.name, input: JSON.parse(t.function.arguments) })),
  };
}

async function openaiResponses(q) {
  const params = { model: q.model, input: asked, tools: [{ type: 'function', name: 'slide-read', description, parameters, strict: false }] };
  const client = openai(q);
  const r = q.way === 'whole' ? await client.responses.create(params) : await client.responses.stream(params).finalResponse();
  if (r.status === 'failed') throw new Error(r.error.message); // what the helper leaves to its user
  return {
    ...nothing(), text: r.output_text ?? '', stop: r.status, input: r.usage?.input_tokens, output: r.usage?.output_tokens,
    calls: r.output.filter((o) => o.type === 'function_call').map((o) => ({ name: o.name, input: JSON.parse(o.arguments) })),
  };
}

async function google(q) {
  const client = new GoogleGenAI({ apiKey: q.token, httpOptions: { baseUrl: q.baseURL } });
  const params = { model: q.model, contents: asked, config: { tools: [{ functionDeclarations: [{ name: 'slide-read', description, parametersJsonSchema: parameters }] }] } };
  const r = nothing();
  const take = (c) => {
    for (const p of c.candidates?.[0]?.content?.parts ?? []) {
      if (p.functionCall) r.calls.push({ name: p.functionCall.name, input: p.functionCall.args });
      else if (!p.thought) r.text += p.text ?? '';
    }
    r.stop = c.candidates?.[0]?.finishReason ?? r.stop;
    r.input = c.usageMetadata?.promptTokenCount ?? r.input;
    r.output = c.usageMetadata ? (c.usageMetadata.candidatesTokenCount ?? 0) + (c.usageMetadata.thoughtsTokenCount ?? 0) : r.output;
  };
  if (q.way === 'whole') take(await client.models.generateContent(params));
  else for await (const c of await client.models.generateContentStream(params)) take(c);
  return r;
}

// The Vercel AI SDK with any of its providers.
const vercel = (model) => async (q) => {
  const params = { model: model(q), prompt: asked, maxRetries: 0, tools: { 'slide-read': tool({ description, inputSchema: jsonSchema(parameters) }) } };
  let done;
  if (q.way === 'whole') {
    done = await generateText(params);
  } else {
    let failed;
    const stream = streamText({ ...params, onError: ({ error }) => (failed = error) });
    await stream.consumeStream({ onError: (error) => (failed ??= error) });
    if (failed) throw failed;
    done = { text: await stream.text, toolCalls: await stream.toolCalls, finishReason: await stream.finishReason, usage: await stream.usage };
  }
  return {
    ...nothing(), text: done.text, stop: done.finishReason, input: done.usage.inputTokens, output: done.usage.outputTokens,
    calls: done.toolCalls.map((c) => ({ name: c.toolName, input: c.input })),
  };
};

// LangChain; a stream's pieces are added up as its users do.
const langchain = (model) => async (q) => {
  const bound = model(q).bindTools([{ type: 'function', function: { name: 'slide-read', description, parameters } }]);
  let m;
  if (q.way === 'whole') m = await bound.invoke(asked);
  else for await (const piece of await bound.stream(asked)) m = m ? m.concat(piece) : piece;
  const text = typeof m.content === 'string' ? m.content : m.content.filter((p) => p.type === 'text').map((p) => p.text).join('');
  return {
    ...nothing(), text, stop: m.response_metadata.finish_reason ?? m.response_metadata.stop_reason ?? m.additional_kwargs?.stop_reason ?? '',
    input: m.usage_metadata?.input_tokens, output: m.usage_metadata?.output_tokens, calls: (m.tool_calls ?? []).map((c) => ({ name: c.name, input: c.args })),
  };
};

const clients = {
  anthropic,
  'openai chat': openaiChat,
  'openai responses': openaiResponses,
  google,
  'ai anthropic': vercel((q) => createAnthropic({ baseURL: `${q.baseURL}/v1`, apiKey: q.token })(q.model)),
  'ai openai chat': vercel((q) => createOpenAI({ baseURL: `${q.baseURL}/v1`, apiKey: q.token }).chat(q.model)),
  'ai openai responses': vercel((q) => createOpenAI({ baseURL: `${q.baseURL}/v1`, apiKey: q.token }).responses(q.model)),
  'ai google': vercel((q) => createGoogleGenerativeAI({ baseURL: `${q.baseURL}/v1beta`, apiKey: q.token })(q.model)),
  'ai compatible': vercel((q) => createOpenAICompatible({ name: 'gateway', baseURL: `${q.baseURL}/v1`, apiKey: q.token, includeUsage: true })(q.model)),
  'langchain openai': langchain((q) => new ChatOpenAI({ model: q.model, apiKey: q.token, maxRetries: 0, configuration: { baseURL: `${q.baseURL}/v1` } })),
  'langchain anthropic': langchain((q) => new ChatAnthropic({ model: q.model, apiKey: q.token, anthropicApiUrl: q.baseURL, maxRetries: 0, maxTokens: 64 })),
};

async function ask(q) {
  try {
    return await clients[q.client](q);
  } catch (err) {
    const cause = err.lastError ?? err;
    return { ...nothing(), failure: { status: cause.status ?? cause.statusCode ?? 0, message: cause.message ?? String(cause), class: cause?.constructor?.name ?? typeof cause } };
  }
}

let input = '';
for await (const chunk of process.stdin.setEncoding('utf8')) input += chunk;
const { questions } = JSON.parse(input);
const results = new Array(questions.length);
let next = 0;
await Promise.all(
  Array.from({ length: atOnce }, async () => {
    while (next < questions.length) {
      const i = next++;
      results[i] = await ask(questions[i]);
    }
  }),
);
process.stdout.write(JSON.stringify(results));
