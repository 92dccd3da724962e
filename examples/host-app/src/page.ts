// The page: one question, its answer as it comes, and two buttons when a change waits for the person.

export const page = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Deck studio</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem }
  label, textarea, input { display: block; width: 100%; box-sizing: border-box; font: inherit; margin-bottom: .75rem }
  pre { background: #f4f4f4; padding: 1rem; overflow: auto }
  [hidden] { display: none }
</style>
<h1>Deck studio</h1>
<form id="ask">
  <label>Your token <input id="token" type="password" autocomplete="off" required></label>
  <label>Model <input id="model" value="demo-1" required></label>
  <label>What shall I do with the deck? <textarea id="text" rows="2" required>Make slide 2 warmer.</textarea></label>
  <button>Ask</button>
</form>
<p id="answer" role="status"></p>
<section id="preview" hidden>
  <h2 id="summary"></h2>
  <pre id="diff"></pre>
  <button id="accept">Accept</button> <button id="discard">Discard</button>
</section>
<script>
  const $ = (id) => document.getElementById(id);
  let waiting = null;

  // Reads an event stream of the gateway; see "Chat events" in its documentation.
  async function follow(path, body) {
    const res = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", Authorization: "Bearer " + $("token").value }, body: JSON.stringify(body) });
    if (!res.ok) { $("answer").textContent = (await res.json()).detail; return; }
    let rest = "";
    for (const reader = res.body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\\n\\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.split("\\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5)).join("\\n");
        if (data) show(JSON.parse(data));
      }
    }
  }

  function show(e) {
    if (e.type === "text.delta") $("answer").textContent += e.delta;
    if (e.type === "capability.progress") $("answer").textContent = e.message ?? "";
    if (e.type === "error") $("answer").textContent = e.message;
    if (e.type === "preview") {
      waiting = { runId: e.runId, previewId: e.previewId };
      $("summary").textContent = e.summary;
      $("diff").textContent = e.artifacts.map((a) => a.diff ?? a.inline ?? a.url ?? "").join("\\n");
      $("preview").hidden = false;
    }
  }

  function decide(decision) {
    $("preview").hidden = true;
    $("answer").textContent = "";
    return follow("/confirm", { ...waiting, decision });
  }

  $("ask").onsubmit = (e) => {
    e.preventDefault();
    $("answer").textContent = "";
    $("preview").hidden = true;
    follow("/chat", { projectId: "deck_abc", model: $("model").value, tools: ["studio.*"], messages: [{ role: "user", content: $("text").value }] });
  };
  $("accept").onclick = () => decide("accept");
  $("discard").onclick = () => decide("discard");
</script>
`;
