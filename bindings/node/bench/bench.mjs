// Acquire + release a second: this package beside the Rust library and proper-lockfile, as ratios of one run.
//
// Run it with a release build of the add-on (`npm run build`) on an idle machine: `node bench/bench.mjs [--rounds=5]
// [--seconds=1] [--profile=release]`. The programs take turns, so that a slow moment hits all of them; the rate of each is
// the median of its rounds.

import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import lockfile from 'proper-lockfile';
import { Client } from 'tenure';
import { startDaemon, temporary } from '../test/daemon.mjs';

const { values: options } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '1' },
    profile: { type: 'string', default: 'release' },
  },
});
const seconds = Number(options.seconds);

async function rate(once) {
  await once();
  const began = performance.now();
  let count = 0;
  while (performance.now() - began < seconds * 1000) {
    await once();
    count += 1;
  }
  return count / ((performance.now() - began) / 1000);
}

function rust(address, durability) {
  const command = ['run', '--quiet', '--package', 'tenure-bindings', '--example', 'rates'];
  if (options.profile === 'release') command.push('--release');
  command.push('--', address, options.seconds, durability);
  const cwd = path.resolve(import.meta.dirname, '../..');
  return Number(execFileSync('cargo', command, { cwd, encoding: 'utf8' }));
}

const directory = temporary();
const file = path.join(directory, 'file');
writeFileSync(path.join(directory, 'theirs'), '');
const daemon = await startDaemon();
process.env.TENURE_URL = daemon.url;
const [durable, fast] = [new Client(), new Client({ durable: false })];
const ours = (client, address) => () => rate(async () => (await client.lock(address)).release());

const programs = {
  'file, Rust': () => rust(file, 'durable'),
  'file, Node': ours(durable, file),
  'file not synced, Rust': () => rust(file, 'fast'),
  'file not synced, Node': ours(fast, file),
  'file not synced, proper-lockfile': () => rate(async () => (await lockfile.lock(path.join(directory, 'theirs')))()),
  'daemon, Rust': () => rust('bench:/a', 'durable'),
  'daemon, Node': ours(durable, 'bench:/a'),
};
const rates = Object.fromEntries(Object.keys(programs).map((name) => [name, []]));
for (let round = 0; round < Number(options.rounds); round++) {
  for (const [name, program] of Object.entries(programs)) rates[name].push(await program());
}
await daemon.stop();

const median = (name) => rates[name].toSorted((a, b) => a - b)[Math.floor(rates[name].length / 2)];
console.log('acquire + release a second, medians:');
for (const name of Object.keys(programs)) {
  console.log(`  ${name.padEnd(36)}${Math.round(median(name)).toLocaleString('en').padStart(10)}`);
}
console.log('ratios:');
for (const kind of ['file', 'file not synced', 'daemon']) {
  const ratio = median(`${kind}, Rust`) / median(`${kind}, Node`);
  console.log(`  ${kind}: the Rust library is ${ratio.toFixed(2)} times as fast (aim: at most 1.3)`);
}
const ratio = median('file not synced, Node') / median('file not synced, proper-lockfile');
console.log(`  file not synced: ${ratio.toFixed(2)} times as fast as proper-lockfile (aim: at least 3)`);
