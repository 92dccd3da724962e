// Asks the gateway through the official Node SDK. Reads one job as JSON from standard input, writes one JSON array of results in the order
// of the job's questions to standard output:
//
//   {"questions": [{"baseURL", "token", "auth": "apiKey" | "authToken", "way": "whole" | "plain" | "helper" | "beta", "content",
//                   "headers", "betas", "retries"}]}
//
// It judges nothing. What it says of an answer has the form of package replay's Result.
import Anthropic from '@anthropic-ai/sdk';

const atOnce = 4;

function usageOf(u) {
  return {
    input: u?.input_tokens ?? 0,
    cacheRead: u?.cache_read_input_tokens ?? 0,
    cacheWrite: u?.cache_creation_input_tokens ?? 0,
    cacheWrite5m: u?.cache_creation?.ephemeral_5m_input_tokens ?? 0,
    cacheWrite1h: u?.cache_creation?.ephemeral_1h_input_tokens ?? 0,
    output: u?.output_tokens ?? 0,
    thinking: u?.output_tokens_details?.thinking_tokens ?? 0,
    searches: u?.server_tool_use?.web_search_requests ?? 0,
  };
}

function nothing() {
  return { id: '', model: '', text: '', thinking: '', signature: '', redacted: [], tools: [], stop: '', usage: usageOf() };
}

// A message as the SDK gives it whole.
function readMessage(m) {
  const r = { ...nothing(), id: m.id, model: m.model, stop: m.stop_reason, usage: usageOf(m.usage) };
  for (const b of m.content) {
    switch (b.type) {
      case 'text':
        r.text += b.text;
        break;
      case 'thinking':
        r.thinking += b.thinking;
        r.signature += b.signature;
        break;
      case 'redacted_thinking':
        r.redacted.push(b.data);
        break;
      case 'tool_use':
        r.tools.push({ id: b.id, name: b.name, input: JSON.stringify(b.input) });
        break;
    }
  }
  return r;
}

// Events put together by hand, as a client does that iterates over the stream.
class Fold {
  read = nothing();
  usage = {};
  blocks = [];

  take(ev) {
    const r = this.read;
    switch (ev.type) {
      case 'message_start':
        r.id = ev.message.id;
        r.model = ev.message.model;
        this.usage = { ...ev.message.usage };
        break;
      case 'content_block_start':
        this.blocks[ev.index] = ev.content_block.type === 'tool_use' ? { id: ev.content_block.id, name: ev.content_block.name, input: '' } : null;
        if (ev.content_block.type === 'redacted_thinking') r.redacted.push(ev.content_block.data);
        break;
      case 'content_block_delta':
        if (ev.delta.type === 'text_delta') r.text += ev.delta.text;
        if (ev.delta.type === 'thinking_delta') r.thinking += ev.delta.thinking;
        if (ev.delta.type === 'signature_delta') r.signature += ev.delta.signature;
        if (ev.delta.type === 'input_json_delta' && this.blocks[ev.index]) this.blocks[ev.index].input += ev.delta.partial_json;
        break;
      case 'message_delta':
        r.stop = ev.delta.stop_reason;
        for (const [k, v] of Object.entries(ev.usage)) if (v !== null && v !== undefined) this.usage[k] = v;
        break;
    }
  }

  result() {
    return { ...this.read, tools: this.blocks.filter(Boolean), usage: usageOf(this.usage) };
  }
}

function failureOf(err) {
  return {
    status: err.status ?? 0,
    type: err.type ?? '',
    code: err.errorCode ?? '',
    message: err.apiMessage ?? err.message ?? String(err),
    retryAfter: err.headers?.get?.('retry-after') ?? '',
    class: err?.constructor?.name ?? typeof err,
  };
}

async function ask(q) {
  const client = new Anthropic({
    baseURL: q.baseURL,
    apiKey: q.auth === 'apiKey' ? q.token : null,
    authToken: q.auth === 'authToken' ? q.token : null,
    maxRetries: q.retries ?? 0,
    timeout: 20_000,
    defaultHeaders: q.headers ?? {},
  });
  const params = { model: 'claude-sonnet-4-6', max_tokens: 64, messages: [{ role: 'user', content: q.content }] };
  const fold = new Fold();
  let text = '';
  try {
    switch (q.way) {
      case 'whole':
        return { read: readMessage(await client.messages.create(params)), failure: null };
      case 'plain':
        for await (const ev of await client.messages.create({ ...params, stream: true })) fold.take(ev);
        return { read: fold.result(), failure: null };
      case 'beta':
        for await (const ev of await client.beta.messages.create({ ...params, stream: true, betas: q.betas })) fold.take(ev);
        return { read: fold.result(), failure: null };
      case 'helper': {
        const stream = client.messages.stream(params).on('text', (delta) => (text += delta));
        return { read: readMessage(await stream.finalMessage()), failure: null };
      }
      default:
        throw new Error(`no way ${q.way}`);
    }
  } catch (err) {
    return { read: { ...fold.result(), text: fold.read.text + text }, failure: failureOf(err) };
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
