// Talks to the gateway's agent through the chat front ends people use, headless. Reads one job as JSON from standard input, writes one JSON
// object of results, by question, to standard output:
//
//   {"baseURL", "token", "questions": [{"name", "client": "ai-sdk" | "ag-ui", "said", "decision", "leaveAfter"}]}
//
// It judges nothing.
import { Chat } from '@ai-sdk/react';
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';
import { HttpAgent } from '@ag-ui/client';

globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand among the results

const read = async () => {
  let all = '';
  for await (const chunk of process.stdin) all += chunk;
  return JSON.parse(all);
};

const own = (q) => ({ projectId: `deck-${q.client}-${q.name}`, model: 'claude-sonnet-4-6', tools: ['slide.*'] });

const until = async (test) => {
  for (let i = 0; i < 2000; i++) {
    if (test()) return;
    await new Promise((r) => setTimeout(r, 5));
  }
  throw new Error('waited in vain');
};

const transport = (job, q) => new DefaultChatTransport({
  api: `${job.baseURL}/api/agent/chat?protocol=ai-sdk-v1`,
  headers: { Authorization: `Bearer ${job.token}` },
  body: own(q),
  prepareReconnectToStreamRequest: ({ id }) => ({ api: `${job.baseURL}/api/agent/chat/${id}/stream`, headers: { Authorization: `Bearer ${job.token}` } }),
});

const parts = (message) => message.parts.map((p) => ({
  type: p.type, text: p.text, tool: p.toolName, state: p.state, input: p.input, output: p.output, errorText: p.errorText, approval: p.approval, data: p.data,
}));

async function aiSDK(job, q) {
  const result = { error: null, messages: [], data: [] };
  const options = {
    id: `ai-${q.name}`, transport: transport(job, q), sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    onError: (e) => { result.error = e.message; }, onData: (d) => { result.data.push(d.type); },
  };
  let chat = new Chat(options);
  const first = chat.sendMessage({ text: q.said });
  if (q.leaveAfter) {
    await until(() => JSON.stringify(chat.messages).includes(q.leaveAfter));
    await chat.stop();
    await first;
    const before = chat.messages;
    chat = new Chat({ ...options, messages: before.filter((m) => m.role === 'user') });
    await chat.resumeStream();
  } else {
    await first;
  }
  if (q.decision) {
    const call = chat.lastMessage.parts.find((p) => p.state === 'approval-requested');
    if (!call) throw new Error(`nothing to approve in ${JSON.stringify(chat.lastMessage)}`);
    result.asked = parts(chat.lastMessage);
    await chat.addToolApprovalResponse({ id: call.approval.id, approved: q.decision === 'accept', reason: q.decision === 'accept' ? undefined : 'Not today.' });
    await until(() => chat.status !== 'submitted' && chat.status !== 'streaming');
  }
  result.status = chat.status;
  result.messages = chat.messages.map((m) => ({ id: m.id, role: m.role, metadata: m.metadata, parts: parts(m) }));
  return result;
}

async function agUI(job, q) {
  const result = { error: null, events: [], messages: [] };
  const agent = new HttpAgent({
    url: `${job.baseURL}/api/agent/chat?protocol=ag-ui`, headers: { Authorization: `Bearer ${job.token}` }, threadId: `ag-${q.name}`,
    initialMessages: [{ id: 'm1', role: 'user', content: q.said }],
  });
  const customs = [];
  const watcher = {
    onEvent: ({ event }) => { result.events.push(event.type === 'CUSTOM' ? `CUSTOM ${event.name}` : event.type); if (event.type === 'CUSTOM') customs.push(event); if (event.type === 'RUN_ERROR') result.error = event.message; },
    onRunFailed: ({ error }) => { result.error = error.message; },
  };
  const run = async (parameters) => {
    try {
      await agent.runAgent(parameters, watcher);
    } catch (e) {
      result.error = result.error ?? e.message;
    }
  };
  await run({ runId: `r-${q.name}`, forwardedProps: own(q) });
  if (q.decision) {
    const preview = customs.find((c) => c.name === 'preview').value;
    const started = customs.find((c) => c.name === 'run').value;
    result.preview = preview;
    await run({ runId: `r2-${q.name}`, forwardedProps: { confirm: { runId: started.runId, previewId: preview.previewId, decision: q.decision } } });
  }
  result.messages = agent.messages;
  return result;
}

const job = await read();
const results = {};
await Promise.all(job.questions.map(async (q) => {
  try {
    results[`${q.client} ${q.name}`] = await (q.client === 'ai-sdk' ? aiSDK : agUI)(job, q);
  } catch (e) {
    results[`${q.client} ${q.name}`] = { failure: e.stack };
  }
}));
process.stdout.write(JSON.stringify(results));
