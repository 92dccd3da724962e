// The app over HTTP: webhooks for the gateway, and a page with its two routes for people.

import type { IncomingMessage, ServerResponse } from "node:http";
import { Problem, type Capabilities } from "./capabilities.js";
import { page } from "./page.js";
import { NotTheGateway, type Verifier } from "./verify.js";

const maxBody = 1 << 20;

interface Options {
  capabilities: Capabilities;
  verifier: Verifier;
  gateway: string; // its URL
}

/** Returns the listener of the server's requests. */
export function listener(options: Options): (req: IncomingMessage, res: ServerResponse) => void {
  return (req, res) => {
    route(options, req, res).catch((err: unknown) => {
      if (err instanceof NotTheGateway) return problem(res, 401, err.message);
      if (err instanceof Problem) return problem(res, err.status, err.message);
      console.error(err);
      problem(res, 500, "Something went wrong.");
    });
  };
}

async function route({ capabilities, verifier, gateway }: Options, req: IncomingMessage, res: ServerResponse): Promise<void> {
  const path = new URL(req.url ?? "/", "http://app").pathname;
  if (req.method === "GET" && path === "/") {
    res.writeHead(200, { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'" }).end(page);
    return;
  }
  if (req.method !== "POST") throw new Problem(404, "There is nothing here.");
  const body = await read(req);
  if (path.startsWith("/hooks/")) {
    const call = await verifier.verify(req.headers, body);
    if (path !== `/hooks/${call.capability}`) throw new Problem(404, "This is another capability's address.");
    await answer(res, (progress) => capabilities.serve(call, progress));
    return;
  }
  // The page speaks to the gateway through us, as the person who uses it: their own token goes along and nothing of ours.
  const to = { "/chat": "/api/agent/chat", "/confirm": "/api/agent/confirm" }[path];
  if (!to) throw new Problem(404, "There is nothing here.");
  const upstream = await fetch(gateway + to, { method: "POST", headers: { "Content-Type": "application/json", Authorization: req.headers.authorization ?? "" }, body });
  res.writeHead(upstream.status, { "Content-Type": upstream.headers.get("content-type") ?? "application/json", "Cache-Control": "no-store" });
  if (upstream.body) for await (const chunk of upstream.body) res.write(chunk);
  res.end();
}

/** Answers with one JSON document, or, once there is progress to tell, with one JSON line for each sign of it and one for the end. */
async function answer(res: ServerResponse, work: (progress: (message: string, fraction: number) => void) => Promise<unknown>): Promise<void> {
  let streaming = false;
  const line = (value: unknown) => {
    if (!streaming) {
      streaming = true;
      res.writeHead(200, { "Content-Type": "application/x-ndjson" });
    }
    res.write(JSON.stringify(value) + "\n");
  };
  let result: unknown;
  try {
    result = await work((message, fraction) => line({ progress: { message, fraction } }));
  } catch (err) {
    if (!streaming) throw err;
    line({ error: { detail: err instanceof Problem ? err.message : "Something went wrong." } });
    res.end();
    return;
  }
  if (streaming) {
    line(result);
    res.end();
  } else if (result === undefined) {
    res.writeHead(204).end();
  } else {
    res.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(result));
  }
}

async function read(req: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of req as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > maxBody) throw new Problem(413, "The body is too large.");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function problem(res: ServerResponse, status: number, detail: string): void {
  if (res.headersSent) {
    res.destroy();
    return;
  }
  res.writeHead(status, { "Content-Type": "application/problem+json" }).end(JSON.stringify({ type: "about:blank", title: "No", status, detail }));
}
