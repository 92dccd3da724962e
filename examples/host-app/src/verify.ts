// Who is calling: a request is the gateway's only when its signature and its token are, and both speak of the same call.

import type { IncomingHttpHeaders } from "node:http";
import { jwtVerify, type JWTVerifyGetKey } from "jose";
import { Webhook } from "standardwebhooks";

export type Phase = "run" | "preview" | "apply" | "discard" | "expire";

/** The body of every webhook. */
export interface Call {
  phase: Phase;
  capability: string;
  callId: string;
  runId: string;
  idempotencyKey: string; // the same for all phases and attempts of one call
  input: Record<string, unknown>;
  project?: string;
  thread?: string;
  org: { id: string; slug: string };
  user: { id: string; email?: string };
  token?: string; // what our preview answered
}

export class NotTheGateway extends Error {}

export class Verifier {
  constructor(
    private readonly options: {
      secret: string; // whsec_...
      issuer: string; // the gateway's public URL
      audience: string; // our own origin, as registered
      keys: JWTVerifyGetKey; // createRemoteJWKSet(<issuer>/.well-known/jwks.json)
    },
  ) {}

  /** Returns the call of a request, or throws NotTheGateway. body must be the bytes as they came. */
  async verify(headers: IncomingHttpHeaders, body: string): Promise<Call> {
    try {
      // The signature covers id, time and body; one older than five minutes is refused.
      new Webhook(this.options.secret).verify(body, headers as Record<string, string>);
      const call = JSON.parse(body) as Call;
      const bearer = /^Bearer (\S+)$/.exec(headers.authorization ?? "")?.[1] ?? "";
      const { payload } = await jwtVerify(bearer, this.options.keys, {
        issuer: this.options.issuer,
        audience: this.options.audience,
        algorithms: ["EdDSA"],
        typ: "delegation+jwt",
        requiredClaims: ["sub", "exp", "jti", "org", "run", "call", "capability", "phase"],
      });
      // What may be done is decided by the token, so the body must not say anything else.
      const same = { sub: call.user.id, org: call.org.id, run: call.runId, call: call.callId, capability: call.capability, phase: call.phase, project: call.project };
      for (const [claim, value] of Object.entries(same)) {
        if (payload[claim] !== value) throw new Error(`the token's ${claim} is not the body's`);
      }
      return call;
    } catch (cause) {
      throw new NotTheGateway("not signed by the gateway", { cause });
    }
  }
}
