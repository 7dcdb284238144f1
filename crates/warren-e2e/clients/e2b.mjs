// E2B's SDK for JavaScript against `warren e2b`. The environment says where the server is; the package is found from the
// working directory.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const require = createRequire(process.cwd() + '/')
const { Sandbox, CommandExitError, NotFoundError, AuthenticationError } = await import(pathToFileURL(require.resolve('e2b')))

const step = (name) => console.log(name)

async function until(what, condition) {
  const end = Date.now() + 60_000
  while (!(await condition())) {
    assert.ok(Date.now() < end, `in vain: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

const sandbox = await Sandbox.create({ timeoutMs: 600_000, metadata: { who: 'js' } })
const result = await sandbox.commands.run('echo out; echo err >&2; id -un')
assert.deepEqual([result.stdout, result.stderr], ['out\nuser\n', 'err\n'])
await assert.rejects(sandbox.commands.run('exit 5'), (error) => error instanceof CommandExitError && error.exitCode === 5)
step('create and commands')

const seen = []
const background = await sandbox.commands.run('head -n 1', { background: true, stdin: true, onStdout: (text) => seen.push(text) })
await sandbox.commands.sendStdin(background.pid, 'a\n')
assert.equal((await background.wait()).stdout, 'a\n')
assert.equal(seen.join(''), 'a\n')
const sleeping = await sandbox.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
assert.ok((await sandbox.commands.list()).some((process) => process.pid === sleeping.pid))
await sleeping.disconnect()
assert.ok(await sandbox.commands.kill(sleeping.pid))
await assert.rejects(sandbox.commands.run('sleep 1000', { timeoutMs: 1000 }))
step('background, stdin, kill, timeout')

let written = ''
const terminal = await sandbox.pty.create({ cols: 77, rows: 10, timeoutMs: 0, onData: (data) => (written += new TextDecoder().decode(data)) })
await sandbox.pty.resize(terminal.pid, { cols: 99, rows: 20 })
await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size\n'))
await until('the size', () => written.includes('20 99'))
await terminal.kill()
step('terminal')

await sandbox.files.write('dir/one.txt', 'first')
assert.equal(await sandbox.files.read('dir/one.txt'), 'first')
assert.deepEqual((await sandbox.files.list('dir')).map((entry) => entry.name), ['one.txt'])
assert.equal((await sandbox.files.rename('dir/one.txt', 'dir/2.txt')).path, '/home/user/dir/2.txt')
assert.ok(!(await sandbox.files.exists('dir/one.txt')))
await assert.rejects(sandbox.files.read('none'), NotFoundError)
const events = []
const watch = await sandbox.files.watchDir('dir', (event) => events.push(`${event.type} ${event.name}`))
await sandbox.files.write('dir/new.txt', 'x')
await until('events', () => events.includes('create new.txt') && events.includes('write new.txt'))
await watch.stop()
await sandbox.files.remove('dir')
step('files and watch')

assert.equal((await sandbox.getInfo()).metadata.who, 'js')
assert.ok((await Sandbox.list().nextItems()).some((item) => item.sandboxId === sandbox.sandboxId))
assert.ok(await (await Sandbox.connect(sandbox.sandboxId)).isRunning())
await sandbox.files.write('kept', 'yes')
await (sandbox.pause ?? sandbox.betaPause).call(sandbox)
assert.equal((await sandbox.getInfo()).state, 'paused')
const resumed = await Sandbox.connect(sandbox.sandboxId)
assert.equal(await resumed.files.read('kept'), 'yes')
await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
assert.ok(await sandbox.kill())
assert.ok(!(await sandbox.isRunning()))
step('done')
process.exit(0)
