// For each pre-tokenizer: trains a small vocabulary and has Hugging Face's library encode random strings with it.
//   node make.js OUT_DIR STRINGS_EACH SEED        (finds the npm package "tokenizers" through NODE_PATH)
// OUT_DIR/NAME.json: {pre, model, tokens, types, merges | scores, cases: [{text, ids, decoded}]}
'use strict'
const fs = require('fs')
const path = require('path')
const hf = require('tokenizers')
const { strings, random, prose } = require('./strings.js')

const CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
const REST = '|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+'
const UPPER = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]'
const LOWER = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]'
const cl100k = (digits) => CONTRACTION + '|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|' + digits + '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*' + REST
const O200K = '[^\\r\\n\\p{L}\\p{N}]?' + UPPER + '*' + LOWER + '+' + CONTRACTION + '?|[^\\r\\n\\p{L}\\p{N}]?' + UPPER + '+' + LOWER + '*' +
  CONTRACTION + '?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*' + REST
const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

const split = (re) => ({ type: 'Split', pattern: { Regex: re }, behavior: 'Isolated', invert: false })
const level = (regex) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: regex })
const cuts = (...res) => ({ type: 'Sequence', pretokenizers: [...res.map(split), level(false)] })
const NFC = { type: 'NFC' }

// gpt-2 and olmo say ByteLevel with its own pattern, as their tokenizer.json do.
const PRES = [
  { name: 'qwen2', normalizer: NFC, pre: cuts(cl100k('\\p{N}')) },
  { name: 'llama-bpe', normalizer: null, pre: cuts(cl100k('\\p{N}{1,3}')), ignoreMerges: true },
  { name: 'gpt-4o', normalizer: null, pre: cuts(O200K) },
  { name: 'olmo', normalizer: NFC, pre: level(true), spaces: true },
  { name: 'gpt-2', normalizer: null, pre: level(true) },
  { name: 'default', normalizer: null, pre: cuts('[\\p{P}$+<=>^~|]+', GPT2, '\\p{N}+', '[0-9][0-9][0-9]') },
]
const CONTROL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|im|>', '<|im|>x']
const USER = ['<tool_call>', '</tool_call>', '<e\u0301>', '<|im_end|>\n', '\u00a0\u2581']
const RUNS = ['  ', '   ', '    ', '        ']

/* Byte-pair training on counted words, each an array of symbols: the most frequent pair first, n times. */
function train(words, n) {
  const merges = []
  for (; merges.length < n;) {
    const counts = new Map()
    for (const [symbols, count] of words)
      for (let i = 0; i + 1 < symbols.length; i++) {
        const pair = symbols[i] + '\0' + symbols[i + 1]
        counts.set(pair, (counts.get(pair) || 0) + count)
      }
    let best = null, most = 1
    for (const [pair, count] of counts) if (count > most || (count === most && best !== null && pair < best)) { best = pair; most = count }
    if (best === null) break
    const [left, right] = best.split('\0')
    merges.push([left, right])
    for (const word of words) {
      const s = word[0]
      for (let i = 0; i + 1 < s.length; i++) if (s[i] === left && s[i + 1] === right) s.splice(i, 2, left + right)
    }
  }
  return merges
}

function counted(pieces) {
  const counts = new Map()
  for (const p of pieces) counts.set(p, (counts.get(p) || 0) + 1)
  return [...counts].map(([p, c]) => [[...p], c])
}

const json = (parts) => JSON.stringify({ version: '1.0', truncation: null, padding: null, post_processor: null, ...parts })
const bpe = (parts) => ({ type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false,
  byte_fallback: false, ignore_merges: false, ...parts })
const added = (tokens, types) => tokens.flatMap((content, id) => (types[id] === 2 || types[id] === 3 || types[id] === 4
  ? [{ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: types[id] !== 4 }] : []))
const table = (tokens, types, kinds) => Object.fromEntries(tokens.flatMap((t, id) => (kinds.includes(types[id]) ? [[t, id]] : [])))

function levelModel(p, corpus) {
  const parts = { added_tokens: [], normalizer: p.normalizer, pre_tokenizer: p.pre, decoder: level(true) }
  const alphabet = hf.byteLevelAlphabet().sort()
  const empty = hf.Tokenizer.fromString(json({ ...parts, model: bpe({ vocab: Object.fromEntries(alphabet.map((c, i) => [c, i])), merges: [] }) }))
  const merges = train(counted(corpus.flatMap((s) => empty.getPreTokenizer().preTokenizeString(s).map(([piece]) => piece))), 500)
  const tokens = [...new Set([...alphabet, ...merges.map(([a, b]) => a + b)])]
  // Whole pieces that no merge makes: ignore_merges takes them, everything else must not.
  for (const extra of ['\u0120xyzzy', 'plugh', '123', '\u0120\u0120\u0120\u0120\u0120']) if (!tokens.includes(extra)) tokens.push(extra)
  const types = tokens.map(() => 1)
  for (const t of CONTROL) { tokens.push(t); types.push(3) }
  for (const t of [...USER, ...(p.spaces ? RUNS : [])]) { tokens.push(t); types.push(4) }
  const model = bpe({ vocab: table(tokens, types, [1]), merges, ignore_merges: !!p.ignoreMerges })
  return { file: { model: 'gpt2', pre: p.name, tokens, types, merges: merges.map((m) => m.join(' ')) },
    tokenizer: hf.Tokenizer.fromString(json({ ...parts, added_tokens: added(tokens, types), model })) }
}

/* A SentencePiece vocabulary in Llama's order: <unk> <s> </s>, bytes, merged pieces by falling score, characters.
 * Merges as transformers' convert_slow_tokenizer makes them of scores. */
function spmModel(corpus) {
  const marked = corpus.map((s) => '\u2581' + s.replaceAll(' ', '\u2581'))
  const words = counted(marked.flatMap((s) => s.split(/(?<=[^\u2581])(?=\u2581)/u)).filter((s) => [...s].length < 40))
  const chars = new Map()
  for (const [symbols, count] of words) for (const c of symbols) chars.set(c, (chars.get(c) || 0) + count)
  const kept = new Set([...chars].filter(([, n]) => n > 2).map(([c]) => c))
  const known = words.filter(([symbols]) => symbols.every((c) => kept.has(c)))
  const tokens = ['<unk>', '<s>', '</s>'], types = [2, 3, 3], scores = [0, 0, 0]
  for (let b = 0; b < 256; b++) { tokens.push('<0x' + b.toString(16).toUpperCase().padStart(2, '0') + '>'); types.push(6); scores.push(0) }
  const pieces = new Set(train(known, 500).map(([a, b]) => a + b))
  for (const t of ['aba', 'ab', 'ba', 'aa', 'aaa', 'aaaa', '\u2581\u2581\u2581', '\u2581\u2581\u2581\u2581\u2581']) pieces.add(t)
  for (const c of 'ab') kept.add(c)
  for (const t of [...CONTROL, ...USER]) pieces.delete(t)
  for (const t of [...pieces, ...kept]) { scores.push(-(tokens.length - 259)); tokens.push(t); types.push(1) }
  for (const t of CONTROL) { tokens.push(t); types.push(3); scores.push(0) }
  for (const t of USER.slice(0, 4)) { tokens.push(t); types.push(4); scores.push(0) }
  const vocab = table(tokens, types, [1, 2, 3, 4, 6]), normal = table(tokens, types, [1])
  const ways = []
  for (const [t, id] of Object.entries(normal)) {
    const c = [...t]
    for (let i = 1; i < c.length; i++) {
      const left = c.slice(0, i).join(''), right = c.slice(i).join('')
      if (left in normal && right in normal) ways.push([scores[id], i, c.length - i, left, right])
    }
  }
  ways.sort((a, b) => b[0] - a[0] || b[1] - a[1] || b[2] - a[2])
  const model = bpe({ unk_token: '<unk>', fuse_unk: true, byte_fallback: true, vocab, merges: ways.map((w) => [w[3], w[4]]) })
  const tokenizer = hf.Tokenizer.fromString(json({ added_tokens: added(tokens, types), model, pre_tokenizer: null,
    normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '\u2581' }, { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' }] },
    decoder: { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '\u2581' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' },
      { type: 'Strip', content: ' ', start: 1, stop: 0 }] } }))
  return { file: { model: 'llama', pre: 'spm', tokens, types, scores }, tokenizer }
}

async function main([out, n, seed]) {
  fs.mkdirSync(out, { recursive: true })
  const spellings = [...CONTROL, ...USER, ...RUNS, '<s>', '</s>', '<unk>', ' xyzzy', 'plugh', '<0x41>']
  const corpus = [...strings(7, 600, spellings), ...prose(random(8), 6000).split(/(?<=\n)/)]
  for (const p of [...PRES, { name: 'spm' }]) {
    const { file, tokenizer } = p.pre ? levelModel(p, corpus) : spmModel(corpus)
    file.cases = []
    for (const text of strings(Number(seed) + p.name.length * 1000, Number(n), spellings)) {
      const ids = (await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds()
      file.cases.push({ text, ids, decoded: await tokenizer.decode(ids, false) })
    }
    const { cases, ...head } = file
    const lines = Object.entries(head).map(([k, v]) => JSON.stringify(k) + ': ' + JSON.stringify(v))
    fs.writeFileSync(path.join(out, p.name + '.json'),
      '{' + lines.join(',\n') + ',\n"cases": [\n' + cases.map((c) => JSON.stringify(c)).join(',\n') + '\n]}\n')
  }
}
main(process.argv.slice(2)).catch((e) => { console.error(e); process.exit(1) })
