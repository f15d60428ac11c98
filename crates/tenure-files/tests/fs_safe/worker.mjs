// A process that uses the original's lock, driven by its arguments and its standard input.
//
//   worker.mjs PACKAGE_DIR hold TARGET            take it, say so, release on a line of input
//   worker.mjs PACKAGE_DIR try TARGET             one attempt, say how it ended
//   worker.mjs PACKAGE_DIR contend TARGET COUNT POLICY DWELL_MS
//                                                 COUNT sections under the lock, each checked
//
// POLICY: default (what the package does by itself) or approve (remove locks of dead processes).

import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [, , packageDir, mode, targetPath, count, policy, dwell] = process.argv;
const file = path.join(packageDir, "node_modules/@openclaw/fs-safe/dist/sidecar-lock.js");
const { createSidecarLockManager } = await import(pathToFileURL(file).href);
const locks = createSidecarLockManager("interop");
const say = (word) => fs.writeSync(1, `> ${word}\n`);

function runs(pid) {
  try {
    const stat = fs.readFileSync(`/proc/${pid}/stat`, "utf8");
    return !/^ [ZX]/.test(stat.slice(stat.lastIndexOf(")") + 1));
  } catch {
    return false;
  }
}

const options = (more) => ({
  targetPath,
  staleMs: 30_000,
  payload: () => ({ pid: process.pid, host: os.hostname(), createdAt: new Date().toISOString() }),
  ...more,
});

if (mode === "hold") {
  const handle = await locks.acquire(options({ retry: { minTimeout: 5, maxTimeout: 5 } }));
  say("held");
  for await (const _ of readline.createInterface({ input: process.stdin })) break;
  await handle.release();
  say("released");
  process.exit(0);
}

if (mode === "try") {
  try {
    const handle = await locks.acquire(options({ retry: { retries: 0 } }));
    await handle.release();
    say("taken");
  } catch (error) {
    say(error.code ?? String(error));
  }
  process.exit(0);
}

// `inside` names the process in the section. A process that enters checks whether the previous one
// still runs; a process that was killed inside has left its name and is gone in a moment.
const directory = path.dirname(targetPath);
const at = (name) => path.join(directory, name);
const append = (name, line) => fs.appendFileSync(at(name), `${line}\n`);
const read = (name) => {
  try {
    return fs.readFileSync(at(name), "utf8");
  } catch {
    return "";
  }
};

// Whether the lock file is ours: it tells which of two holders lost its lock.
function whose() {
  try {
    return JSON.parse(read("state.json.lock")).pid === process.pid ? "mine" : "not mine";
  } catch {
    return "not mine";
  }
}

function enter(me) {
  const before = read("inside");
  if (before && before !== me) {
    const until = Date.now() + 200;
    while (Date.now() < until && runs(before.split(" ")[1]) && read("inside") === before);
    if (runs(before.split(" ")[1])) append("doubles", `${before} ; ${me} ; ${whose()}`);
  }
  // Replace the file in one step: two processes inside at the same time must not mix their names.
  fs.writeFileSync(at(`inside-${process.pid}`), me);
  fs.renameSync(at(`inside-${process.pid}`), at("inside"));
}

function leave(me) {
  if (read("inside") !== me) {
    append("overlaps", me);
  } else {
    fs.rmSync(at("inside"), { force: true });
  }
}

const poll = { minTimeout: 1, maxTimeout: 4, randomize: true };
const approving = {
  staleRecovery: "remove-if-unchanged",
  shouldReclaim: ({ payload }) => Boolean(payload?.pid) && !runs(payload.pid),
  shouldRemoveStaleLock: ({ payload }) => Boolean(payload?.pid) && !runs(payload.pid),
};
for (let n = 0; n < Number(count); n++) {
  const me = `original ${process.pid} ${n}`;
  let handle;
  while (!handle) {
    try {
      handle = await locks.acquire(
        options({ retry: poll, timeoutMs: 60_000, ...(policy === "approve" ? approving : {}) }),
      );
    } catch (error) {
      // The second generation calls a lock stale that vanishes while it is judged.
      if (error.code === "file_lock_stale") continue;
      append("failures", `${me}: ${error.code ?? error}`);
      process.exit(1);
    }
  }
  enter(me);
  const next = Number(read("counter") || "0") + 1;
  // In place with one write: a kill in between must not lose the count.
  const counter = fs.openSync(at("counter"), fs.constants.O_RDWR | fs.constants.O_CREAT, 0o600);
  fs.writeSync(counter, String(next).padStart(10, "0"), 0);
  fs.closeSync(counter);
  append("log", `${me} ${next}`);
  if (Number(dwell) > 0) await new Promise((resolve) => setTimeout(resolve, Number(dwell)));
  leave(me);
  await handle.release();
}
say("done");
process.exit(0);
