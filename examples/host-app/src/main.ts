// Starts the app: it listens, tells the gateway what it can do, and says where it is.

import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { createRemoteJWKSet } from "jose";
import { Capabilities } from "./capabilities.js";
import { Decks } from "./deck.js";
import { listener } from "./server.js";
import { Verifier } from "./verify.js";

function setting(name: string, fallback?: string): string {
  const value = process.env[name] ?? fallback;
  if (!value) throw new Error(`set ${name}`);
  return value;
}

const gateway = setting("GATEWAY_URL", "http://127.0.0.1:8080");
const secret = setting("WEBHOOK_SECRET");
const host = setting("HOST", "127.0.0.1");

const server = createServer();
server.listen(Number(setting("PORT", "8090")), host);
await once(server, "listening");
const origin = process.env.PUBLIC_URL ?? `http://${host}:${(server.address() as AddressInfo).port}`;

const capabilities = new Capabilities(new Decks());
const verifier = new Verifier({
  secret,
  issuer: setting("GATEWAY_ISSUER", gateway),
  audience: origin,
  keys: createRemoteJWKSet(new URL("/.well-known/jwks.json", gateway)),
});
server.on("request", listener({ capabilities, verifier, gateway }));

const res = await fetch(`${gateway}/api/operator/apps/studio/capabilities`, {
  method: "PUT",
  headers: { "Content-Type": "application/json", Authorization: `Bearer ${setting("OPERATOR_TOKEN")}` },
  body: JSON.stringify(capabilities.document(`${origin}/hooks`, secret)),
});
if (!res.ok) throw new Error(`the gateway did not take the registration: ${res.status} ${await res.text()}`);
console.log(`deck studio is ready at ${origin}`);

for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.on(signal, () => {
    server.close(() => process.exit(0));
    server.closeIdleConnections();
  });
}
