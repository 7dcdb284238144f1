// Fails if what a first visit loads is larger than promised. Terminals are a chunk of their own and not counted.

import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const LARGEST = 300 * 1024;

const directory = process.env.WARREN_UI_OUT ?? new URL("../../crates/warren-service/ui", import.meta.url).pathname;
const page = readFileSync(`${directory}/index.html`);
const files = [...page.toString().matchAll(/(?:src|href)="(\/[^"]+)"/g)].map((match) => readFileSync(directory + match[1]));
const size = [page, ...files].reduce((sum, file) => sum + gzipSync(file).length, 0);
console.log(`first load: ${(size / 1024).toFixed(1)} KiB in ${files.length + 1} files, compressed; at most ${LARGEST / 1024}`);
if (files.length < 2 || size > LARGEST) process.exit(1);
