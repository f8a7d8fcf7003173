// Run the tests of a checkout of http-tests/cache-tests against an edge, together with their origin server.
// Usage: node conformance.mjs <checkout> <prefix> ; started by scripts/conformance, which reads the two JSON lines
// that it prints: {"origin": port} when the origin listens, then the results.
import http from 'node:http'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [checkout, prefix] = process.argv.slice(2)
const load = path => import(pathToFileURL(`${checkout}/${path}`).href)
const report = value => process.stdout.write(JSON.stringify(value) + '\n')
console.log = console.error = () => {}

const handlers = {
  config: (await load('test-engine/server/handle-config.mjs')).default,
  state: (await load('test-engine/server/handle-state.mjs')).default,
  test: (await load('test-engine/server/handle-test.mjs')).default
}

// The suite's own server, below the prefix that makes its paths those of raw files.
const server = http.createServer((request, response) => {
  const path = request.url.startsWith(prefix) ? request.url.slice(prefix.length) : request.url
  const [, name, ...segments] = new URL(path, 'http://origin').pathname.split('/')
  if (name in handlers) return handlers[name](segments, request, response)
  response.writeHead(name === '-' ? 200 : 404).end()
})
await new Promise(resolve => server.listen(0, '127.0.0.1', resolve))
const origin = `http://127.0.0.1:${server.address().port}`
report({ origin })

const [edge] = await new Promise(resolve => createInterface(process.stdin).once('line', line => resolve([line])))
const base = `${edge}${prefix}`
// Tests are set up directly at the origin, because an edge forwards neither PUT nor other paths.
const { fetch } = globalThis
globalThis.fetch = (url, options) =>
  fetch(/\/(config|state)\/[^/]+$/.test(url) ? String(url).replace(base, origin) : url, options)

const { runTests, getResults } = await load('test-engine/client/runner.mjs')
const { determineTestResult } = await load('test-engine/lib/results.mjs')
const suites = (await load('tests/index.mjs')).default
await runTests(suites, false, base)
const results = getResults()
report(suites.flatMap(suite => suite.tests.filter(test => !test.browser_only).map(test => ({
  suite: suite.id,
  id: test.id,
  kind: test.kind || 'required',
  symbol: determineTestResult(suites, test.id, results, false)[2],
  result: results[test.id]
}))))
process.exit(0)
