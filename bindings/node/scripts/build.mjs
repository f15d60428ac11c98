// Builds the native add-on with cargo alone and puts it beside package.json.

import { execFileSync } from 'node:child_process';
import { copyFileSync, renameSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const release = process.argv.includes('--release');

execFileSync(
  'cargo',
  ['build', '--locked', '--package', 'tenure-node-binding', ...(release ? ['--release'] : [])],
  { cwd: here, stdio: 'inherit' },
);
const metadata = JSON.parse(
  execFileSync('cargo', ['metadata', '--no-deps', '--format-version', '1'], {
    cwd: here,
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  }),
);
const built = path.join(
  metadata.target_directory,
  release ? 'release' : 'debug',
  'libtenure_node_binding.so',
);
const addon = path.join(here, `tenure.${process.platform}-${process.arch}.node`);
// A program may have mapped the old file, so it is replaced and not overwritten.
copyFileSync(built, `${addon}.new`);
renameSync(`${addon}.new`, addon);
console.log(addon);
