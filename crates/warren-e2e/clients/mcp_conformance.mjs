// Runs the scenarios of the official conformance suite that ask for no tools of a test server.
//
// Arguments: the URL of a server, and a key. The suite sends no key, so a proxy adds it. `Host` and `Origin` are passed on
// as the suite sends them.

import { execFile } from 'node:child_process';
import http from 'node:http';
import { join } from 'node:path';
import { promisify } from 'node:util';

const SCENARIOS = [
  'server-initialize', 'ping', 'tools-list', 'resources-list', 'prompts-list', 'completion-complete',
  'server-sse-polling', 'server-sse-multiple-streams', 'dns-rebinding-protection',
];

const [url, key] = process.argv.slice(2);
const suite = join(process.cwd(), 'node_modules/@modelcontextprotocol/conformance/dist/index.js');
const { hostname, port } = new URL(url);

const proxy = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${key}` };
  const { method, url: path } = request;
  const passed = http.request({ host: hostname, port, path, method, headers }, answer => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
    answer.on('error', () => response.destroy());
  });
  passed.on('error', () => response.destroy());
  request.pipe(passed);
  response.on('close', () => passed.destroy());
});
await new Promise(listening => proxy.listen(0, '127.0.0.1', listening));

for (const scenario of SCENARIOS) {
  const target = `http://localhost:${proxy.address().port}/mcp`;
  const words = [suite, 'server', '--url', target, '--scenario', scenario];
  const ran = await promisify(execFile)(process.execPath, words).catch(error => error);
  const passed = /^Passed: (\d+)\/\1, 0 failed/m.test(ran.stdout);
  if (ran.code || !passed) {
    console.log(`${scenario}: ${ran.stdout}${ran.stderr}`);
    process.exit(1);
  }
}
console.log('done');
process.exit(0);
