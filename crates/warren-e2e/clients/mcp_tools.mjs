// Calls every tool of `warren mcp` with an official TypeScript client and checks the answers.
//
// Arguments: the package of the client, the protocol (`legacy` or a version), then `warren` with its arguments for standard
// input and output, or a URL and a key for HTTP.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [name, protocol, server, ...rest] = process.argv.slice(2);

const TOOLS = [
  'create_sandbox', 'list_sandboxes', 'delete_sandbox', 'execute_command', 'start_command', 'poll_command',
  'kill_command', 'upload_file', 'download_file', 'edit_file', 'list_files', 'file_exists', 'search_files', 'run_code',
  'restart_context', 'open_port',
];

// The packages are in the current directory, this file is not.
const require = createRequire(join(process.cwd(), 'x.js'));
const load = path => import(pathToFileURL(require.resolve(path)));
const older = name === '@modelcontextprotocol/sdk';
const { Client } = await load(older ? `${name}/client/index.js` : name);
const { StdioClientTransport } = await load(older ? `${name}/client/stdio.js` : `${name}/stdio`);
const { StreamableHTTPClientTransport } = await load(older ? `${name}/client/streamableHttp.js` : name);

const overHttp = server.startsWith('http:');
const { PATH, HOME, WARREN_HOME } = process.env;
const transport = overHttp
  ? new StreamableHTTPClientTransport(new URL(server), { requestInit: { headers: { Authorization: `Bearer ${rest[0]}` } } })
  : new StdioClientTransport({ command: server, args: ['mcp', ...rest], env: { PATH, HOME, WARREN_HOME } });
const options = older ? {} : { versionNegotiation: { mode: protocol === 'legacy' ? 'legacy' : { pin: protocol } } };
const client = new Client({ name: 'warren-e2e', version: '1' }, options);
await client.connect(transport);

const patience = { timeout: 300_000 };
const called = new Set();

async function raw(tool, args) {
  called.add(tool);
  const params = { name: tool, arguments: args };
  return older ? client.callTool(params, undefined, patience) : client.callTool(params, patience);
}

async function call(tool, args = {}) {
  const result = await raw(tool, args);
  assert(!result.isError, `${tool}: ${JSON.stringify(result.content)}`);
  return result.structuredContent;
}

async function refused(word, tool, args) {
  const result = await raw(tool, args);
  assert(result.isError, `${tool} was not refused`);
  assert(result.content[0].text.includes(word), result.content[0].text);
}

const { tools } = await client.listTools();
assert.deepEqual(tools.map(tool => tool.name).sort(), [...TOOLS].sort());

const { sandbox_claim_name } = await call('create_sandbox', { env: { GREETING: 'hello' } });
const own = args => ({ sandbox_claim_name, ...args });
const { sandboxes } = await call('list_sandboxes');
assert(sandboxes.some(sandbox => sandbox.sandbox_claim_name === sandbox_claim_name && sandbox.ready));

const ran = await call('execute_command', own({ command: 'echo $GREETING; echo bad >&2; exit 3' }));
assert.deepEqual([ran.exit_code, ran.stdout, ran.stderr], [3, 'hello\n', 'bad\n']);
const { command_id } = await call('start_command', own({ command: 'echo ready; exec sleep 600' }));
let part;
do part = await call('poll_command', { command_id, wait: 1 }); while (!part.stdout);
assert.deepEqual([part.running, part.stdout], [true, 'ready\n']);
assert((await call('kill_command', { command_id })).killed);

const text = 'größer\n'.repeat(1000);
await call('upload_file', own({ path: '/tmp/w/a.txt', content: text }));
assert.equal((await call('download_file', own({ path: '/tmp/w/a.txt' }))).content, text);
await call('upload_file', own({ path: '/tmp/w/b.txt', content: 'one two\n' }));
assert.equal((await call('edit_file', own({ path: '/tmp/w/b.txt', old_text: 'two', new_text: '2' }))).replacements, 1);
const { entries } = await call('list_files', own({ path: '/tmp/w' }));
assert.deepEqual(entries.map(entry => entry.name), ['a.txt', 'b.txt']);
assert.equal((await call('file_exists', own({ path: '/tmp/w/none' }))).exists, false);
const { matches } = await call('search_files', own({ path: '/tmp/w', pattern: 'one 2' }));
assert.deepEqual(matches, [{ path: '/tmp/w/b.txt', line: 1, text: 'one 2' }]);

const { resourceTemplates } = await client.listResourceTemplates();
assert.deepEqual(resourceTemplates.map(template => template.uriTemplate), ['warren://{sandbox_claim_name}/{+path}']);
const { contents } = await client.readResource({ uri: `warren://${sandbox_claim_name}/tmp/w/b.txt` });
assert.equal(contents[0].text, 'one 2\n');

assert.equal((await call('run_code', own({ code: 'x = 20\nx + 1' }))).text, '21');
assert.equal((await call('run_code', own({ code: 'x' }))).text, '20');
assert((await call('restart_context', own({}))).ended);
const opened = await call('open_port', own({ port: 8123 }));
assert.equal(opened.headers['X-Sandbox-Port'], '8123');

await refused('`timeout`', 'execute_command', own({ command: 'true', timeout: 601 }));
await refused('you have no sandbox', 'execute_command', { sandbox_claim_name: 'other', command: 'true' });
await assert.rejects(() => raw('no_such_tool', {}), /no_such_tool/);
called.delete('no_such_tool');
await call('delete_sandbox', own({}));
await refused('you have no sandbox', 'list_files', own({ path: '/' }));

// This one is left to the end of the client.
await call('create_sandbox');
assert.deepEqual([...called].sort(), [...TOOLS].sort());
if (overHttp && protocol === 'legacy') await transport.terminateSession();
await client.close();
console.log('done');
