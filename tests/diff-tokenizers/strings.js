// Random Unicode strings: every script, combining marks, emoji, white space of every kind, digits of every script,
// contractions in both cases with the letters that fold into them, controls, private use, unassigned code points,
// spellings of added tokens. The same seed gives the same strings.
'use strict'

function random(seed) { // mulberry32
  let a = seed >>> 0
  return () => {
    a = (a + 0x6d2b79f5) >>> 0
    let t = Math.imul(a ^ (a >>> 15), 1 | a)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

const every = (re) => {
  const found = []
  for (let c = 0; c < 0x110000; c++) {
    if (c >= 0xd800 && c < 0xe000) continue
    const s = String.fromCodePoint(c)
    if (re.test(s)) found.push(s)
  }
  return found
}
const range = (...pairs) => {
  const found = []
  for (const [a, b] of pairs) for (let c = a; c <= b; c++) found.push(String.fromCodePoint(c))
  return found
}

const SCRIPTS = [
  [[0x41, 0x5a], [0x61, 0x7a]], [[0x61, 0x7a]], [[0xc0, 0x17f]], [[0x180, 0x24f], [0x1e00, 0x1eff]], [[0x370, 0x3ff], [0x1f00, 0x1fff]],
  [[0x400, 0x52f]], [[0x531, 0x58a]], [[0x591, 0x5f4]], [[0x600, 0x6ff]], [[0x700, 0x7bf]], [[0x900, 0x97f]], [[0x980, 0x9ff]],
  [[0xb80, 0xbff]], [[0xc80, 0xd7f]], [[0xe00, 0xeff]], [[0xf00, 0xfff]], [[0x1000, 0x109f]], [[0x10a0, 0x10ff], [0x1c90, 0x1cbf]],
  [[0x1100, 0x11ff]], [[0x1200, 0x139f]], [[0x13a0, 0x13ff], [0xab70, 0xabbf]], [[0x1780, 0x17ff]], [[0x1800, 0x18aa]], [[0x3041, 0x30ff]],
  [[0x4e00, 0x9fff]], [[0xac00, 0xd7a3]], [[0xf900, 0xfaff], [0x2f800, 0x2fa1d]], [[0xff00, 0xffef]], [[0x10400, 0x1049f]],
  [[0x11080, 0x110c2]], [[0x11100, 0x11147]], [[0x1d400, 0x1d7ff]], [[0x1e900, 0x1e95f]], [[0x20000, 0x2ffff]], [[0x2100, 0x214f]],
  // Younger than Unicode 9 or 14: Dives Akuru, Todhri, Tulu-Tigalari, Gurung Khema, Kirat Rai, Garay, Kawi, CJK H and I.
  [[0x11900, 0x11959]], [[0x105c0, 0x105f3]], [[0x11380, 0x113e2]], [[0x16100, 0x16139]], [[0x16d40, 0x16d79]], [[0x10d40, 0x10d8f]],
  [[0x11f00, 0x11f5a]], [[0x31350, 0x323af], [0x2ebf0, 0x2ee5d]],
].map((pairs) => range(...pairs))

const CLASSES = {
  mark: every(/^\p{M}$/u), digit: every(/^\p{N}$/u), punct: every(/^[\p{P}\p{S}]$/u), letter: every(/^\p{L}$/u),
  title: every(/^[\p{Lt}\p{Lm}]$/u), other: every(/^[\p{Cc}\p{Cf}]$/u), emoji: every(/^\p{Extended_Pictographic}$/u),
  composite: every(/^.$/su).filter((s) => s.normalize('NFD') !== s && !(s >= '\uac00' && s <= '\ud7a3')),
}
const SPACE = ' ,\t,\n,\r,\r\n,\v,\f,\u0085,\u00a0,\u1680,\u180e,\u2000,\u2001,\u2002,\u2003,\u2004,\u2005,\u2006,\u2007,\u2008,\u2009,\u200a,\u200b,\u2028,\u2029,\u202f,\u205f,\u2060,\u3000,\ufeff'.split(',')
const QUOTED = 's t re ve m ll d S T RE VE M LL D Re vE lL \u017f \u017fo K\u212a \u212a l\u017f R\u0117 n x'.split(' ')
const ASCII = '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~'.split('')

// A made-up language that the vocabularies are trained on, so that texts in it merge far.
const SYLLABLES = 'ka to mi re sol an the er in ing ou st pre un ly 12 34 \u00e9t \u00fcb \u043f\u0440\u0438 \u0432\u0435\u0442 \u65e5\u672c \u8a9e \u0e01\u0e32\u0e23 \ud55c\uad6d A B Th'.split(' ')
const GAPS = [' ', ' ', ' ', ', ', '.\n', '  ', "'s ", '\n\n', '/', '!!', '    ']
function prose(rnd, n) {
  let s = ''
  for (let i = 0; i < n; i++) {
    for (let k = 1 + Math.floor(rnd() * 3); k > 0; k--) s += SYLLABLES[Math.floor(rnd() * rnd() * SYLLABLES.length)]
    s += GAPS[Math.floor(rnd() * GAPS.length)]
  }
  return s
}

function strings(seed, n, added) {
  const rnd = random(seed)
  const below = (k) => Math.floor(rnd() * k)
  const pick = (a) => a[below(a.length)]
  const run = (f, most) => {
    let s = ''
    for (let k = 1 + below(most); k > 0; k--) s += f()
    return s
  }
  const word = () => {
    const script = pick(SCRIPTS)
    return run(() => pick(script), 9)
  }
  const KINDS = [
    [2, () => run(() => pick(SCRIPTS[1]), 8)],
    [1, () => { const w = run(() => pick(SCRIPTS[1]), 6); return w[0].toUpperCase() + w.slice(1) }],
    [5, () => prose(rnd, 1 + below(3))], [1, () => run(() => pick(SCRIPTS[0]), 8)], [4, word],
    [6, () => ' '], [2, () => run(() => ' ', 12)], [2, () => run(() => pick(SPACE), 4)], [1, () => pick(SPACE)], [2, () => run(() => pick(['\n', '\r', '\r\n', ' ', '\t']), 6)],
    [2, () => pick(["'", '\u2019']) + pick(QUOTED)], [1, () => run(() => String.fromCharCode(48 + below(10)), 8)], [1, () => run(() => pick(CLASSES.digit), 4)],
    [2, () => run(() => pick(ASCII), 5)], [1, () => run(() => pick(CLASSES.punct), 3)], [2, () => run(() => pick(CLASSES.mark), 4)],
    [1, () => run(() => pick(CLASSES.composite), 3)], [1, () => pick(CLASSES.composite).normalize('NFD')], [1, () => run(() => pick(CLASSES.title), 3)],
    [1, () => run(() => pick(CLASSES.letter), 4)], [1, () => pick(CLASSES.other)],
    [1, () => run(() => pick(CLASSES.emoji) + pick(['', '\ufe0f', '\u200d', '\ud83c\udffd']), 4)], [1, () => run(() => String.fromCodePoint(0x1f1e6 + below(26)), 4)],
    [1, () => run(() => { let c; do { c = below(0x110000) } while (c >= 0xd800 && c < 0xe000); return String.fromCodePoint(c) }, 3)],
    [1, () => String.fromCodePoint(pick([0xe000, 0xf0000, 0x100000]) + below(0x1000))],
    [1, () => pick(added)], [1, () => { const a = [...pick(added)]; a.splice(below(a.length), 1); return a.join('') }],
    [1, () => { const c = pick(['a', 'z', ' ', '\u2581', '=', '.', '\u0301']); return run(() => c, 20) }],
    [1, () => '/' + run(() => pick(SCRIPTS[1]), 4)], [1, () => run(() => pick(['ab', 'a', 'ba', 'aa', '\u2581']), 6)],
  ]
  const weighted = KINDS.flatMap(([w, f]) => Array(w).fill(f))
  const made = []
  for (let i = 0; i < n; i++) made.push(run(() => pick(weighted)(), 1 + 3 * (i % 12)))
  return made
}

module.exports = { strings, random, prose }
