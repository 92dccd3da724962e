// What must not get in.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createLocalJWKSet, exportJWK, generateKeyPair, SignJWT } from "jose";
import { Webhook } from "standardwebhooks";
import { NotTheGateway, Verifier, type Call } from "./verify.js";

const secret = "whsec_" + Buffer.alloc(32, 1).toString("base64");
const issuer = "https://agent.example";
const audience = "https://studio.example";
const { privateKey, publicKey } = await generateKeyPair("EdDSA");
const stranger = await generateKeyPair("EdDSA");
const keys = createLocalJWKSet({ keys: [{ ...(await exportJWK(publicKey)), kid: "k1", alg: "EdDSA", use: "sig" }] });
const verifier = new Verifier({ secret, issuer, audience, keys });

const call: Call = {
  phase: "apply", capability: "studio.slide.edit", callId: "c_1", runId: "run_1", idempotencyKey: "call_1", input: { slide: 1 }, project: "deck_abc",
  org: { id: "acme.example", slug: "acme" }, user: { id: "u-1" }, token: "t",
};
const claims = { org: "acme.example", run: "run_1", call: "c_1", capability: "studio.slide.edit", phase: "apply", project: "deck_abc" };

interface Change {
  body?: Partial<Call>;
  claims?: Record<string, unknown>;
  sub?: string;
  issuer?: string;
  audience?: string;
  typ?: string;
  kid?: string;
  key?: typeof privateKey;
  age?: number; // seconds of the token
  signed?: Date;
  secret?: string;
  headers?: Record<string, string | undefined>;
  tamper?: (body: string) => string;
}

async function request(c: Change): Promise<[Record<string, string>, string]> {
  const body = JSON.stringify({ ...call, ...c.body });
  const now = Math.floor(Date.now() / 1000) - (c.age ?? 0);
  const token = await new SignJWT({ ...claims, ...c.claims })
    .setProtectedHeader({ alg: "EdDSA", kid: c.kid ?? "k1", typ: c.typ ?? "delegation+jwt" })
    .setIssuer(c.issuer ?? issuer).setAudience(c.audience ?? audience).setSubject(c.sub ?? "u-1").setJti("j").setIssuedAt(now).setExpirationTime(now + 60)
    .sign(c.key ?? privateKey);
  const at = c.signed ?? new Date();
  const headers: Record<string, string | undefined> = {
    authorization: `Bearer ${token}`, "webhook-id": "call_1_apply", "webhook-timestamp": String(Math.floor(at.getTime() / 1000)),
    "webhook-signature": new Webhook(c.secret ?? secret).sign("call_1_apply", at, body), ...c.headers,
  };
  for (const name of Object.keys(headers)) if (headers[name] === undefined) delete headers[name];
  return [headers as Record<string, string>, (c.tamper ?? ((b) => b))(body)];
}

test("the gateway's own request gets in", async () => {
  assert.deepEqual(await verifier.verify(...(await request({}))), call);
});

const refused: Record<string, Change> = {
  "no signature": { headers: { "webhook-signature": undefined } },
  "a signature with another secret": { secret: "whsec_" + Buffer.alloc(32, 2).toString("base64") },
  "another id than was signed": { headers: { "webhook-id": "call_2_apply" } },
  "a changed body": { tamper: (b) => b.replace('"slide":1', '"slide":2') },
  "a signature of yesterday": { signed: new Date(Date.now() - 86_400_000) },
  "a signature of tomorrow": { signed: new Date(Date.now() + 86_400_000) },
  "no token": { headers: { authorization: undefined } },
  "a token that is none": { headers: { authorization: "Bearer x.y.z" } },
  "a token of a stranger's key": { key: stranger.privateKey },
  "a token of an unknown key": { kid: "k2" },
  "a token of another issuer": { issuer: "https://elsewhere.example" },
  "a token for another app": { audience: "https://memo.example" },
  "a token that is over": { age: 61 },
  "a token of another type": { typ: "JWT" },
  "another person's token": { sub: "u-2" },
  "another organisation's token": { claims: { org: "linger.example" } },
  "another call's token": { claims: { call: "c_2" } },
  "another run's token": { claims: { run: "run_2" } },
  "another capability's token": { claims: { capability: "studio.slide.read" } },
  "a preview's token for applying": { claims: { phase: "preview" } },
  "another project's token": { claims: { project: "deck_other" } },
  "a body of another organisation": { body: { org: { id: "linger.example", slug: "linger" } } },
};
for (const [name, change] of Object.entries(refused)) {
  test(`refused: ${name}`, async () => {
    await assert.rejects(verifier.verify(...(await request(change))), NotTheGateway);
  });
}
