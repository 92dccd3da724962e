// Builds catalogue.json from the npm package @pydantic/genai-prices (MIT, see NOTICE) and hand.json.
//
//   npm install @pydantic/genai-prices@0.1.8      in a folder of its own
//   node build.mjs FOLDER/node_modules/@pydantic/genai-prices REVISION > catalogue.json
//
// The output depends on its inputs alone: no clock, no network. REVISION is the date the prices were looked at.
import fs from 'node:fs'
import path from 'node:path'
import vm from 'node:vm'

const [dir, revision] = process.argv.slice(2)
if (!dir || !revision) throw new Error('usage: node build.mjs PACKAGE_FOLDER REVISION')
const hand = JSON.parse(fs.readFileSync(new URL('hand.json', import.meta.url), 'utf8'))
const version = JSON.parse(fs.readFileSync(path.join(dir, 'package.json'), 'utf8')).version

// The package does not export its table. It is the first constant of the bundle and holds nothing but data.
const bundle = fs.readFileSync(path.join(dir, 'dist/index.js'), 'utf8')
const table = vm.runInNewContext(bundle.slice(0, bundle.indexOf('\nclass ')) + ';' + bundle.match(/^const (\w+) = \[/)[1])

// A price is printed with at most six decimals, which also takes away the noise of floats (0.08333333333333334).
const money = (v, decimals = 6) => v.toFixed(decimals).replace(/\.?0+$/, '')

const rateNames = {
  input_mtok: 'input', output_mtok: 'output', cache_read_mtok: 'cacheRead', cache_write_mtok: 'cacheWrite5m', cache_write_1h_mtok: 'cacheWrite1h',
  output_reasoning_mtok: 'reasoning', output_citation_mtok: 'citation',
  input_audio_mtok: 'inputAudio', cache_audio_read_mtok: 'cacheReadAudio', output_audio_mtok: 'outputAudio',
  input_image_mtok: 'inputImage', cache_image_read_mtok: 'cacheReadImage', output_image_mtok: 'outputImage',
}

const providerOf = (id, model) =>
  id === 'google' ? (model.includes('claude') ? 'vertex' : 'gemini') : { aws: 'bedrock', moonshotai: 'moonshot', 'x-ai': 'xai' }[id] ?? id

// match becomes lists of strings. "exact" are whole names; release suffixes (-20250929, -2026-03-17, -latest) are the reader's affair.
function match(m, into) {
  const release = /(-\\d\{8\}|-\\d\{4\}-\\d\{2\}-\\d\{2\})\$$/
  const add = (kind, v) => { v = v.toLowerCase(); if (!into[kind].includes(v)) into[kind].push(v) }
  if (m.or) m.or.forEach((x) => match(x, into))
  else if (m.equals !== undefined) add('names', m.equals)
  else if (m.starts_with !== undefined) add('prefixes', m.starts_with)
  else if (m.ends_with !== undefined) add('suffixes', m.ends_with)
  else if (m.contains !== undefined) add('contains', m.contains)
  else if (m.and && m.and.length === 2 && m.and[1].regex === '^(?!.*-[tT][tT][sS](?:$|-))') { match(m.and[0], into); into.except.push('-tts') }
  else if (m.regex && release.test(m.regex)) add('names', m.regex.slice(1).replace(release, '').replaceAll('\\.', '.'))
  else if (m.regex === '^gemini-3\\.5-flash-\\d') add('prefixes', 'gemini-3.5-flash-0')
  else if (m.regex && /^\^[^\\[\](){}|*+?]*(\\.[^\\[\](){}|*+?]*)*\$$/.test(m.regex)) add('names', m.regex.slice(1, -1).replaceAll(/\\(.)/g, '$1'))
  else throw new Error('a match this script does not know: ' + JSON.stringify(m))
}

function period(prices, isClaude, patch) {
  const above = new Set([0])
  for (const k in rateNames) for (const t of prices[k]?.tiers ?? []) above.add(t.start)
  const tiers = [...above].sort((a, b) => a - b).map((start) => {
    const t = start ? { above: patch?.[start] ?? start } : {}
    for (const [k, name] of Object.entries(rateNames)) {
      const p = prices[k]
      if (p === undefined) continue
      const hit = p.tiers?.filter((x) => x.start <= start).sort((a, b) => b.start - a.start)[0]
      t[name] = money(typeof p === 'number' ? p : hit ? hit.price : p.base)
    }
    // An hour of Claude's cache costs twice the input wherever it is sold; five minutes are priced, the hour often is not.
    if (isClaude && t.cacheWrite5m && !t.cacheWrite1h) t.cacheWrite1h = money(2 * Number(t.input))
    return t
  })
  const p = {}
  if (prices.web_searches_kcount !== undefined) p.search = money(prices.web_searches_kcount / 1000, 9)
  if (prices.requests_kcount !== undefined) p.request = money(prices.requests_kcount / 1000, 9)
  return { ...p, tiers }
}

const rows = []
const left = []
for (const p of table) {
  for (const m of p.models) {
    const provider = providerOf(p.id, m.id)
    const key = provider + '/' + m.id
    const listed = Array.isArray(m.prices) ? m.prices : [{ prices: m.prices }]
    const empty = listed.every((x) => Object.keys(x.prices).length === 0)
    if (empty && !hand.free.some((f) => m.id.endsWith(f) || key === f)) { left.push(key); continue } // empty may mean free or unknown
    if (!empty && listed.some((x) => x.prices.input_mtok === undefined)) { left.push(key); continue } // priced by the page, the hour or the picture
    const how = { names: [], prefixes: [], suffixes: [], contains: [], except: [] }
    match(m.match, how)
    if (hand.exact.includes(provider)) { // whole names only: an unknown model must stay unknown, and a later one is often named after an earlier one
      how.names.push(...[...how.prefixes, ...how.contains].map((x) => x.replace(/[@-]$|-2025$/, '')).filter((x) => !how.names.includes(x)))
      how.names = [...new Set(how.names)]
      how.prefixes = how.contains = []
    }
    for (const k in how) if (how[k].length === 0) delete how[k]
    let from = ''
    const prices = listed.map((x) => {
      const c = x.constraint
      if (c?.type === 'start_date') from = c.start_date
      const head = from ? { from } : {} // a daily window was announced together with the dated price before it
      if (c?.type === 'time_of_date') head.window = [c.start_time.slice(0, 5), c.end_time.slice(0, 5)]
      return { ...head, ...(empty ? { tiers: [{ input: '0', output: '0' }] } : period(x.prices, m.id.includes('claude'), hand.thresholds[provider])) }
    })
    const variants = hand.variants[key]
    rows.push({ provider, id: m.id, ...how, src: 'gp', ...(variants && { sources: variants.sources, variants: variants.rows }), prices })
  }
}
rows.push(...hand.rows)
for (const key of Object.keys(hand.variants)) if (!rows.some((r) => r.provider + '/' + r.id === key)) throw new Error('variants of an unknown row ' + key)

// The first row of a provider that claims a name has it, as in the package.
const taken = {}
for (const r of [...hand.rows, ...rows.filter((x) => x.src === 'gp')])
  for (const kind of ['names', 'prefixes', 'suffixes', 'contains'])
    if (r[kind]) {
      r[kind] = r[kind].filter((n) => { const k = r.provider + '\0' + kind + '\0' + n; return !taken[k] && (taken[k] = true) })
      if (r[kind].length === 0) delete r[kind]
    }
const kept = rows.filter((r) => r.names || r.prefixes || r.suffixes || r.contains)
kept.sort((a, b) => (a.provider + '\0' + a.id < b.provider + '\0' + b.id ? -1 : 1))

const out = ['{', `"schema": "gateway.prices/v1",`, `"revision": ${JSON.stringify(revision)},`,
  `"unit": "USD per 1000000 tokens; search and request: USD each",`,
  `"sources": ${JSON.stringify({ gp: `pydantic/genai-prices ${version} (MIT, see NOTICE)`, doc: "the vendor's documentation, see sources of the row", local: 'our own: what runs on hardware of our own, and the offline demo provider' })},`,
  `"providers": [`, hand.providers.map((p) => JSON.stringify(p)).join(',\n'), `],`, `"rows": [`, kept.map((r) => JSON.stringify(r)).join(',\n'), `]`, `}`]
process.stdout.write(out.join('\n') + '\n')
process.stderr.write(`${kept.length} rows; ${left.length} models left out because their price is not known by tokens\n`)
