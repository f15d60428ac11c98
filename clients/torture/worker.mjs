// A worker that uses the Node package.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { lock } from "../../bindings/node/lib/index.mjs";

const step = fileURLToPath(new URL("step.sh", import.meta.url));
for (;;) {
  try {
    const guard = await lock("vol:/torture/counter", { waitMs: 20_000, ttlMs: 2_000 });
    await guard.check();
    execFileSync("sh", [step, String(guard.fence), "node"]);
    await guard.release();
  } catch (error) {
    console.error(String(error));
  }
}
