// The app's own business: decks of slides, one for each project of each organisation. It knows nothing of the gateway.

export interface Slide {
  title: string;
  body: string;
}

export interface Deck {
  slides: Slide[];
  revisions: number[]; // of each slide, rises with every change
}

export class Decks {
  private readonly decks = new Map<string, Deck>();

  /** The deck of a project. An organisation never reaches another's: its id is part of the key. */
  of(org: string, project: string): Deck {
    const key = JSON.stringify([org, project]);
    let deck = this.decks.get(key);
    if (!deck) {
      const slides = [
        { title: "Northwind, in one sentence", body: "We help regional grocers waste less food." },
        { title: "The problem", body: "Fresh food worth 12 cents of every euro is thrown away." },
        { title: "What we ask", body: "Three pilot regions and a partner for logistics." },
      ];
      deck = { slides, revisions: slides.map(() => 0) };
      this.decks.set(key, deck);
    }
    return deck;
  }
}

/** A person-readable difference of one slide, as a unified diff of its Markdown. */
export function diff(number: number, before: Slide, after: Slide): string {
  const lines = (s: Slide) => [`# ${s.title}`, "", ...s.body.split("\n")];
  const [a, b] = [lines(before), lines(after)];
  const name = `slides/${String(number).padStart(2, "0")}.md`;
  const out = [`--- a/${name}`, `+++ b/${name}`, `@@ -1,${a.length} +1,${b.length} @@`];
  // A slide is short: what is not the same at both ends is replaced as a whole.
  let head = 0;
  while (head < Math.min(a.length, b.length) && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < Math.min(a.length, b.length) - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  for (const line of a.slice(0, head)) out.push(` ${line}`);
  for (const line of a.slice(head, a.length - tail)) out.push(`-${line}`);
  for (const line of b.slice(head, b.length - tail)) out.push(`+${line}`);
  for (const line of a.slice(a.length - tail)) out.push(` ${line}`);
  return out.join("\n") + "\n";
}
