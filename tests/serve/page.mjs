// The page in chromium, as a person uses it. One line "ok NAME" or "not ok NAME" for each check. Waits are for what must
// come, never for time to pass; where a moment matters (a stream that is stopped, a digit that differs) the answer is held
// back or changed on its way.
//   node page.mjs BROWSER OPEN_URL KEYED_URL KEY [FOLDER_FOR_SCREENSHOTS]
import { mkdirSync } from 'node:fs'

const [, , executablePath, open, keyed, key, shots] = process.argv
const { chromium } = await import(process.env.PLAYWRIGHT)
const PATIENCE = 120000

let failed = 0
async function check(name, run) {
  try {
    await run()
    console.log(`ok ${name}`)
  } catch (error) {
    failed++
    console.log(`not ok ${name}`)
    console.log(String(error.stack ?? error).split('\n').slice(0, 12).map((line) => `# ${line}`).join('\n'))
  }
}
function expect(truth, what) {
  if (!truth) throw new Error(what)
}
function equal(is, wanted, what) {
  expect(Object.is(is, wanted), `${what}: ${JSON.stringify(is)}, expected ${JSON.stringify(wanted)}`)
}

const args = ['--disable-gpu', '--disable-dev-shm-usage']
if (process.getuid?.() === 0) args.push('--no-sandbox')
const browser = await chromium.launch({ executablePath, args })

// A fresh browser at an address. Everything it asks for and every complaint is kept.
async function visit(url, options = {}) {
  const context = await browser.newContext(options)
  const page = await context.newPage()
  page.setDefaultTimeout(PATIENCE)
  const asked = [], said = []
  page.on('request', (request) => asked.push(request))
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && said.push(message.text()))
  page.on('pageerror', (error) => said.push(String(error)))
  await page.addInitScript(() => {
    window.shifted = []
    new PerformanceObserver((list) => {
      for (const one of list.getEntries())
        if (!one.hadRecentInput) window.shifted.push([one.value, one.sources.map((s) => s.node?.className || s.node?.id || s.node?.nodeName)])
    }).observe({ type: 'layout-shift', buffered: true })
  })
  const response = await page.goto(url)
  return { context, page, asked, said, response }
}
const picture = async (page, name) => shots && (mkdirSync(shots, { recursive: true }), page.screenshot({ path: `${shots}/${name}.png`, fullPage: true }))
const pane = (page, n) => page.getByRole('region', { name: `Voice ${n}`, exact: true })
const field = (page, n) => page.getByLabel(`Prompt for voice ${n}`)
const ready = (page) => page.getByText('ready', { exact: true }).waitFor()
const state = (page, n, text) => pane(page, n).locator('.state', { hasText: new RegExp(`^${text}$`) }).waitFor()
const answers = (page, n) => pane(page, n).locator('.turn.answer')

const at = await visit(open, { viewport: { width: 1440, height: 900 }, colorScheme: 'light' })
const { page, asked, said, response } = at

await check('the page opens and says what it is', async () => {
  equal(response.status(), 200, 'status')
  expect(/default-src 'none'.*trusted-types 'none'/.test(response.headers()['content-security-policy']), 'the policy')
  await ready(page)
  await page.locator('#model', { hasText: 'Plainsong Tiny' }).waitFor()
  equal(await page.getByRole('button', { name: 'API key' }).count(), 0, 'a button for a key that nobody wants')
})

await check('two voices answer side by side', async () => {
  await field(page, 1).fill('Tell me a tale about a fox and a lantern.')
  await field(page, 2).fill('What is 17 plus 25?')
  await page.getByRole('button', { name: 'Start all' }).click()
  await state(page, 1, 'done')
  await state(page, 2, 'done')
  expect((await answers(page, 1).textContent()).includes('fox'), 'the tale has its fox')
  expect((await answers(page, 2).textContent()).includes('42'), `17 + 25: ${await answers(page, 2).textContent()}`)
  const boxes = [await pane(page, 1).boundingBox(), await pane(page, 2).boundingBox()]
  equal(boxes[0].y, boxes[1].y, 'side by side')
})

await check('a pane shows tokens, speed, how it ended and the seed', async () => {
  const stats = await pane(page, 1).locator('.stats').textContent()
  expect(/^[1-9]\d* tokens[\d.,]+ tok\/s(stop|length) · seed \d+$/.test(stats), stats)
})

await check('what was said before goes with the next question, and settings go with every one', async () => {
  await page.getByText('Settings').click()
  await page.getByLabel('System prompt').fill('You are a kind assistant.')
  await page.getByLabel('Temperature').fill('0')
  await page.getByLabel('Seed').fill('41')
  await page.getByLabel('Max tokens').fill('3')
  await field(page, 2).fill('Tell me a tale about an owl.')
  const sent = page.waitForRequest((request) => request.method() === 'POST')
  await page.getByRole('button', { name: 'Send to voice 2' }).click()
  const body = (await sent).postDataJSON()
  equal(body.messages.map((m) => m.role).join(' '), 'system user assistant user', 'roles')
  equal([body.temperature, body.seed, body.max_tokens].join(' '), '0 41 3', 'settings')
  await pane(page, 2).getByText('length · seed 41').waitFor()
  equal(await pane(page, 2).locator('.tokens').textContent(), '3', 'tokens')
})

await check('the slots, the width and the phases are shown', async () => {
  equal(await page.locator('#slots .slot').count(), 4, 'slots')
  await page.locator('#slots', { hasText: /[1-9]\d* of 4,096/ }).waitFor()
  await page.locator('#legend', { hasText: /setup .*submit .*wait \d+\.\d+ ms.*tail/ }).waitFor()
  await page.waitForFunction(() => { // something is drawn
    const c = document.getElementById('plot')
    return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((b) => b)
  })
})

await check('a stream alone and in company: equal', async () => {
  await page.getByLabel('Max tokens').fill('96')
  await page.getByLabel('Temperature').fill('0.7')
  await page.getByRole('button', { name: 'Compare' }).click()
  await page.locator('#verdict[data-is=equal], #verdict[data-is=differs], #verdict[data-is=none]').waitFor()
  equal(await page.locator('#verdict').textContent(), 'equal', 'verdict')
  const alone = await page.locator('#a-digest').textContent(), together = await page.locator('#b-digest').textContent()
  expect(/^[0-9a-f]{12}$/.test(alone), alone)
  equal(together, alone, 'digest')
  expect(Number(await page.locator('#a-tokens').textContent()) > 1, 'tokens')
})

await check('one digit of one log probability is a difference, and is named', async () => {
  let n = 0
  await page.route('**/v1/chat/completions', async (route) => {
    const answer = await route.fetch()
    let body = await answer.text()
    if (++n === 2) { // the last digit of the last token's
      const at = body.lastIndexOf('"logprob":-'), end = body.indexOf(',', at)
      body = `${body.slice(0, end)}7${body.slice(end)}`
    }
    await route.fulfill({ response: answer, body })
  })
  await page.getByRole('button', { name: 'Compare' }).click()
  await page.locator('#verdict[data-is=equal], #verdict[data-is=differs], #verdict[data-is=none]').waitFor()
  const text = await page.locator('#verdict').textContent()
  expect(/^token \d+ differs: .* alone, .* in company$/.test(text), text)
  await page.unroute('**/v1/chat/completions')
})

await check('Escape stops a stream, and it can go on after that', async () => {
  let held
  await page.route('**/v1/chat/completions', (route) => { held = route }) // never answered
  await field(page, 1).fill('Tell me a tale.')
  await field(page, 1).press('Enter')
  await state(page, 1, 'waiting')
  await page.getByRole('button', { name: 'Stop voice 1' }).waitFor()
  await field(page, 1).press('Escape')
  await state(page, 1, 'stopped')
  await held.abort().catch(() => {})
  await page.unroute('**/v1/chat/completions')
  await field(page, 1).fill('Who are you?')
  await field(page, 1).press('Enter')
  await state(page, 1, 'done')
  expect(await answers(page, 1).last().textContent() !== '', 'an answer')
})

await check('reasoning is folded, the answer stands outside it', async () => {
  const chunk = (delta, finish = null) => `data: ${JSON.stringify({ seed: 1, choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`
  await page.route('**/v1/chat/completions', (route) => route.fulfill({
    contentType: 'text/event-stream',
    body: chunk({ role: 'assistant', content: '' }) + chunk({ reasoning_content: 'a hidden thought' }) + chunk({ content: 'An answer.' }) +
      chunk({}, 'stop') + 'data: [DONE]\n\n' }))
  await field(page, 2).fill('Think.')
  await field(page, 2).press('Enter')
  await pane(page, 2).getByText('An answer.').waitFor()
  await state(page, 2, 'done')
  equal(await pane(page, 2).getByText('a hidden thought').isVisible(), false, 'visible')
  await pane(page, 2).getByText('Reasoning').click()
  await pane(page, 2).getByText('a hidden thought').waitFor()
  await page.unroute('**/v1/chat/completions')
})

await check('what is written stays text', async () => {
  const markup = '<img src=x onerror="window.broken=1"><b>bold</b>'
  await field(page, 1).fill(markup)
  await field(page, 1).press('Enter')
  await state(page, 1, 'done')
  equal(await pane(page, 1).locator('.turn.user').last().textContent(), markup, 'text')
  equal(await page.locator('.log img, .log b').count(), 0, 'elements')
  equal(await page.evaluate(() => {
    try {
      document.createElement('p').innerHTML = '<b>x</b>'
      return 'allowed'
    } catch {
      return 'forbidden'
    }
  }), 'forbidden', 'markup from a string')
  said.splice(0, said.length, ...said.filter((text) => !text.includes('TrustedHTML'))) // this one was asked for
})

await check('every control has a name, every region a heading, ids are single', async () => {
  const wrong = await page.evaluate(() => {
    const bad = []
    const name = (e) => e.getAttribute('aria-label') || (e.getAttribute('aria-labelledby') ?? '').split(' ').map((id) => document.getElementById(id)?.textContent ?? '').join('') ||
      [...(e.labels ?? [])].map((l) => l.textContent).join('') || (e.matches('button, a, summary') ? e.textContent : '')
    for (const e of document.querySelectorAll('button, a, input, textarea, select, summary, [tabindex], canvas, section, dialog'))
      if (!name(e).trim()) bad.push(e.outerHTML.slice(0, 80))
    const ids = [...document.querySelectorAll('[id]')].map((e) => e.id)
    for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) bad.push(`id ${id} twice`)
    if (document.querySelectorAll('h1').length !== 1) bad.push('not one h1')
    if (!document.documentElement.lang || !document.querySelector('main')) bad.push('no language or no main')
    for (const log of document.querySelectorAll('.log')) if (log.getAttribute('role') !== 'log' || log.tabIndex !== 0) bad.push('a log is none')
    return bad
  })
  equal(wrong.join('; '), '', 'wrong')
})

await check('text stands out from its ground, by light and by dark', async () => {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme })
    const poor = await page.evaluate(() => {
      const style = getComputedStyle(document.documentElement)
      const light = (name) => {
        const hex = style.getPropertyValue(`--${name}`).trim().slice(1)
        const [r, g, b] = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255).map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        return .2126 * r + .7152 * g + .0722 * b
      }
      const ratio = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05)
      return [['ink', 'ground', 4.5], ['ink', 'card', 4.5], ['ink', 'tint', 4.5], ['soft', 'ground', 4.5], ['soft', 'card', 4.5], ['soft', 'field', 4.5],
        ['accent', 'card', 4.5], ['on-accent', 'accent', 4.5], ['bad', 'card', 4.5], ['good', 'card', 4.5], ['edge', 'field', 3], ['edge', 'card', 3]]
        .filter(([a, b, least]) => !(ratio(a, b) >= least)).map(([a, b]) => `${a} on ${b}: ${ratio(a, b).toFixed(2)}`)
    })
    equal(poor.join('; '), '', colorScheme)
    await picture(page, `desktop-${colorScheme}`)
  }
})

await check('nothing moved by itself', async () => {
  const shifted = await page.evaluate(() => window.shifted)
  const sum = shifted.reduce((total, [value]) => total + value, 0)
  expect(sum < .02, `${sum}: ${JSON.stringify(shifted.slice(0, 6))}`)
})

await check('no request left the origin', async () => {
  const strangers = asked.map((request) => request.url()).filter((url) => !url.startsWith(`${open}/`) && !url.startsWith('data:'))
  equal(strangers.join(' '), '', 'strangers')
  expect(asked.length > 5, 'requests were seen')
})

await check('no complaint in the console', async () => equal(said.join('; '), '', 'console'))
await at.context.close()

await check('the keyboard reaches everything, in order, with the focus in sight', async () => {
  const { page, context } = await visit(open, { viewport: { width: 1280, height: 800 } })
  await ready(page)
  const wanted = await page.evaluate(() => [...document.querySelectorAll('a[href], button, input, textarea, select, summary, [tabindex="0"]')]
    .filter((e) => !e.disabled && !e.closest('dialog') && (e.checkVisibility() || e.classList.contains('unseen')))
    .map((e) => (e.id || e.getAttribute('aria-label') || e.textContent).slice(0, 40)))
  const seen = []
  await page.bringToFront()
  for (let i = 0; i < wanted.length; i++) {
    await page.keyboard.press('Tab')
    seen.push(await page.evaluate(() => {
      const e = document.activeElement, style = getComputedStyle(e)
      const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2
      return (e.id || e.getAttribute('aria-label') || e.textContent).slice(0, 40) + (shown ? '' : ' (no outline)')
    }))
  }
  equal(seen.join(' > '), wanted.join(' > '), 'order')
  await page.locator('#prompt-1').focus()
  await page.keyboard.type('Who are you?')
  await page.keyboard.press('Enter')
  await state(page, 1, 'done')
  await context.close()
})

await check('360 pixels are enough, and fingers hit the buttons', async () => {
  const phone = await visit(open, { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true })
  await ready(phone.page)
  await phone.page.getByText('Settings').tap()
  await phone.page.getByRole('button', { name: 'Send to voice 1' }).tap()
  await state(phone.page, 1, 'done')
  const found = await phone.page.evaluate(() => ({
    wide: document.documentElement.scrollWidth, inner: innerWidth,
    small: [...document.querySelectorAll('main button, main input, main select, main textarea')].filter((e) => e.getBoundingClientRect().height < 44).map((e) => e.id || e.textContent),
    out: [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.matches('.unseen, caption') && e.getBoundingClientRect().right > innerWidth + .5).map((e) => e.className || e.nodeName),
  }))
  equal(found.wide, 360, 'width of the content')
  equal(found.inner, 360, 'width of the window')
  equal(found.small.join('; '), '', 'too small')
  equal(found.out.join('; '), '', 'beyond the edge')
  equal(phone.said.join('; '), '', 'console')
  await picture(phone.page, 'phone')
  await phone.context.close()
})

const locked = await visit(keyed, { viewport: { width: 1024, height: 768 } })
await check('a server with keys is asked for one, a wrong one is refused, the right one opens', async () => {
  const dialog = locked.page.getByRole('dialog', { name: 'This server wants an API key' })
  await dialog.waitFor()
  await picture(locked.page, 'key')
  await dialog.getByLabel('API key').fill('not-the-key')
  await locked.page.keyboard.press('Enter')
  await locked.page.getByText('That key was not accepted.').waitFor()
  await dialog.getByLabel('API key').fill(key)
  await locked.page.keyboard.press('Enter')
  await locked.page.locator('#model', { hasText: 'Plainsong Tiny' }).waitFor()
  equal(await dialog.isVisible(), false, 'the dialog stays')
})

await check('the key stays in the tab: no cookie, no lasting storage, in no address', async () => {
  equal((await locked.context.cookies()).length, 0, 'cookies')
  equal(await locked.page.evaluate(() => localStorage.length), 0, 'lasting storage')
  expect(!locked.asked.some((request) => request.url().includes(key)), 'an address has it')
  await field(locked.page, 1).fill('Who are you?')
  await field(locked.page, 1).press('Enter')
  await state(locked.page, 1, 'done')
})

await check("a refusal is shown in the pane, in the server's words", async () => {
  await locked.page.getByText('Settings').click()
  await locked.page.getByLabel('Max tokens').fill('100000')
  await field(locked.page, 1).fill('Tell me a tale.')
  await field(locked.page, 1).press('Enter')
  await state(locked.page, 1, 'failed')
  const text = await pane(locked.page, 1).locator('.turn.failed').textContent()
  expect(text.includes('4096') && text.includes('100000'), text)
})
await locked.context.close()

await browser.close()
process.exit(failed ? 1 : 0)
