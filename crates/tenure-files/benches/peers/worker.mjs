// A worker of the benchmark that uses a lock from npm: worker.mjs PACKAGE_HOME NAME DIRECTORY
//
// Says "ready", hears for how many milliseconds to work, answers with one JSON object.

import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [, , home, name, directory] = process.argv;
const packages = path.resolve(home, "node_modules");
const target = path.join(directory, "target");

const contenders = {
  "proper-lockfile": async () => {
    const lockfile = createRequire(import.meta.url)(path.join(packages, "proper-lockfile"));
    const retries = { forever: true, minTimeout: 1, maxTimeout: 10, factor: 1 };
    const acquire = () => lockfile.lock(target, { realpath: false, retries });
    return { acquire, release: (unlock) => unlock() };
  },
  "fs-safe": async () => {
    const file = path.join(packages, "@openclaw/fs-safe/dist/sidecar-lock.js");
    const { createSidecarLockManager } = await import(pathToFileURL(file).href);
    const locks = createSidecarLockManager("bench");
    const payload = () => ({
      pid: process.pid,
      host: os.hostname(),
      createdAt: new Date().toISOString(),
    });
    const retry = { minTimeout: 1, maxTimeout: 10, factor: 1 };
    const acquire = () => locks.acquire({ targetPath: target, staleMs: 30_000, payload, retry });
    return { acquire, release: (handle) => handle.release() };
  },
};

const { acquire, release } = await contenders[name]();
fs.writeSync(1, "ready\n");
const input = readline.createInterface({ input: process.stdin });
const [line] = await new Promise((heard) => input.once("line", (text) => heard([text])));
const time = Number(line);

const started = performance.now();
let asked = started;
let pairs = 0;
let longest = 0;
while (asked - started < time) {
  const held = await acquire();
  longest = Math.max(longest, performance.now() - asked);
  await release(held);
  pairs += 1;
  asked = performance.now();
}
const seconds = (asked - started) / 1000;
fs.writeSync(1, `${JSON.stringify({ pairs, seconds, longest: longest / 1000 })}\n`);
process.exit(0);
