// What the model may do with a deck, and the document that says so to the gateway.

import { randomUUID } from "node:crypto";
import { Decks, diff, type Deck, type Slide } from "./deck.js";
import type { Call } from "./verify.js";

/** An answer of ours that is a no: told to the model as problem+json. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

export interface Result {
  output: unknown;
  displayHint?: string;
}

export interface Preview {
  summary: string;
  artifacts: { kind: string; path?: string; mime?: string; diff?: string }[];
  token: string;
}

export type Progress = (message: string, fraction: number) => void;

interface Capability {
  register: Record<string, unknown>;
  run?(call: Call, progress: Progress): Promise<Result> | Result;
  propose?(call: Call, progress: Progress): Promise<{ summary: string; slide: number; after: Slide }> | { summary: string; slide: number; after: Slide };
}

interface Pending {
  key: string; // of the call it belongs to
  slide: number;
  revision: number;
  after: Slide;
}

const slideInput = { type: "integer", minimum: 1, maximum: 1000, description: "Number of the slide, from 1." };
const object = (properties: Record<string, unknown>, required: string[]) => ({ type: "object", properties, required, additionalProperties: false });

export class Capabilities {
  private readonly pending = new Map<string, Pending>(); // by token
  private readonly applied = new Map<string, Result>(); // by idempotency key; a real app keeps these as long as the change itself

  constructor(readonly decks: Decks) {}

  /** The registry document. Names are unique among all apps of a gateway, so they begin with the app's own. */
  document(url: string, secret: string): Record<string, unknown> {
    const capabilities = Object.entries(this.all).map(([name, c]) => ({ name, ...c.register, handler: { kind: "webhook", path: `/${name}` } }));
    return { version: 1, app: "studio", title: "Deck studio", webhook: { url, secret }, capabilities };
  }

  /** Serves one call. It answers the result or the preview, nothing for discard and expire, and throws a Problem to say no. */
  async serve(call: Call, progress: Progress): Promise<Result | Preview | undefined> {
    const capability = this.all[call.capability];
    if (!capability) throw new Problem(404, "There is no such capability.");
    switch (call.phase) {
      case "run":
        if (!capability.run) throw new Problem(400, "This needs a preview first.");
        return await capability.run(call, progress);
      case "preview": {
        if (!capability.propose) throw new Problem(400, "This has no preview.");
        const { summary, slide, after } = await capability.propose(call, progress);
        const deck = this.deck(call);
        const token = randomUUID();
        this.pending.set(token, { key: call.idempotencyKey, slide, revision: deck.revisions[slide - 1]!, after });
        const path = `slides/${String(slide).padStart(2, "0")}.md`;
        return { summary, artifacts: [{ kind: "diff", path, mime: "text/x-diff", diff: diff(slide, deck.slides[slide - 1]!, after) }], token };
      }
      case "apply":
        return this.apply(call);
      case "discard":
      case "expire":
        this.pending.delete(call.token ?? "");
        return undefined;
    }
  }

  /** Makes a previewed change once, however often it is asked to. */
  private apply(call: Call): Result {
    const before = this.applied.get(call.idempotencyKey);
    if (before) return before;
    const p = this.pending.get(call.token ?? "");
    if (!p || p.key !== call.idempotencyKey) throw new Problem(410, "This preview is gone.");
    const deck = this.deck(call);
    if (deck.revisions[p.slide - 1] !== p.revision) throw new Problem(422, `Slide ${p.slide} has changed since the preview. Read it and propose again.`);
    deck.slides[p.slide - 1] = p.after;
    deck.revisions[p.slide - 1]!++;
    this.pending.delete(call.token ?? "");
    const result = { output: { slide: p.slide, ...p.after, applied: true }, displayHint: "slide" };
    this.applied.set(call.idempotencyKey, result);
    return result;
  }

  private deck(call: Call): Deck {
    if (!call.project) throw new Problem(422, "There is no deck here: the turn names no project.");
    return this.decks.of(call.org.id, call.project);
  }

  private slide(call: Call): { number: number; slide: Slide } {
    const number = Number(call.input.slide); // the gateway has held the input against our schema
    const slide = this.deck(call).slides[number - 1];
    if (!slide) throw new Problem(422, `There is no slide ${number}; the deck has slides 1 to ${this.deck(call).slides.length}.`);
    return { number, slide };
  }

  private readonly all: Record<string, Capability> = {
    "studio.slide.read": {
      register: {
        title: "Read a slide", kind: "read", requiredTier: "viewer", annotations: { readOnly: true },
        description: "Read the title and the body of one slide of the open deck.", oneLine: "Read one slide.",
        adminDescription: "Lets the assistant read slides. It changes nothing.",
        inputSchema: object({ slide: slideInput }, ["slide"]),
      },
      run: (call) => {
        const { number, slide } = this.slide(call);
        return { output: { slide: number, ...slide }, displayHint: "slide" };
      },
    },
    "studio.slide.edit": {
      register: {
        title: "Edit a slide", kind: "mutate", requiredTier: "user", requiresConfirmation: true, gating: "mutate", annotations: { destructive: true, idempotent: true },
        description: "Change the title, the body, or both, of one slide of the open deck. What is not given stays as it is.", oneLine: "Change the title or the body of one slide.",
        adminDescription: "Lets the assistant propose changes to a slide. Nothing changes before the person has accepted.",
        inputSchema: { ...object({ slide: slideInput, title: { type: "string", minLength: 1, maxLength: 200 }, body: { type: "string", maxLength: 4000 } }, ["slide"]), minProperties: 2 },
        chat: { recognitionHints: ["change this slide", "reword the title"], preferInvokeWhen: "the person says what the slide should say" },
      },
      propose: (call) => {
        const { number, slide } = this.slide(call);
        const after = { title: String(call.input.title ?? slide.title), body: String(call.input.body ?? slide.body) };
        return { summary: `Change slide ${number}, "${slide.title}"`, slide: number, after };
      },
    },
    "studio.slide.variant": {
      register: {
        title: "Another wording", kind: "preview", requiredTier: "user", requiresConfirmation: true, gating: "mutate", annotations: { destructive: true, idempotent: true }, timeout: "60s",
        description: "Propose another wording of one slide: warmer, shorter or bolder.", oneLine: "Propose another wording of one slide.",
        adminDescription: "Lets the assistant propose another wording of a slide. Nothing changes before the person has accepted.",
        inputSchema: object({ slide: slideInput, tone: { enum: ["warmer", "shorter", "bolder"] } }, ["slide", "tone"]),
      },
      propose: async (call, progress) => {
        const { number, slide } = this.slide(call);
        progress("Reading the slide", 0.2);
        await new Promise((done) => setTimeout(done, 20)); // a real app would ask its own writer here
        progress("Writing", 0.8);
        const words: Record<string, (s: string) => string> = {
          warmer: (s) => `Together: ${s}`,
          shorter: (s) => s.split(/(?<=[.!?]) /)[0]!,
          bolder: (s) => s.replace(/\.$/, "!"),
        };
        const tone = String(call.input.tone);
        return { summary: `A ${tone} slide ${number}, "${slide.title}"`, slide: number, after: { title: slide.title, body: words[tone]!(slide.body) } };
      },
    },
    "studio.deck.export": {
      register: {
        title: "Export the deck", kind: "mutate", requiredTier: "user", annotations: { idempotent: true }, timeout: "2m",
        description: "Export the open deck as Markdown.", oneLine: "Export the deck as Markdown.",
        adminDescription: "Lets the assistant export a deck. It is not confirmed, since it changes no slide.",
        inputSchema: object({}, []),
        outputSchema: { type: "object", properties: { slides: { type: "integer" }, markdown: { type: "string" } }, required: ["slides", "markdown"] },
      },
      run: (call, progress) => {
        const { slides } = this.deck(call);
        const pages = slides.map((s, i) => {
          progress(`Slide ${i + 1} of ${slides.length}`, (i + 1) / slides.length);
          return `# ${s.title}\n\n${s.body}\n`;
        });
        return { output: { slides: slides.length, markdown: pages.join("\n---\n\n") } };
      },
    },
  };
}
