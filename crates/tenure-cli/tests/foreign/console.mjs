// Drives the web console in a real browser against real daemons.
//
// Input (JSON on standard input): the binary, a directory for data, and a directory for screenshots
// or null. Prints a JSON summary; every assertion that fails ends the program with an error.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const require = createRequire(import.meta.url);
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const input = JSON.parse(readFileSync(0, "utf8"));
const LIMIT = 60_000;
const children = new Set();
const summary = { pages: 0, axe: 0, actions: 0, screenshots: 0 };

const freePort = () =>
  new Promise((resolve) => {
    const server = createServer();
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

/** Starts a daemon and waits until it says that it is ready. */
async function serve(name, environment = {}) {
  const web = environment.TENURE_WEB_LISTEN ?? `127.0.0.1:${await freePort()}`;
  const data = `${input.data}/${name}`;
  mkdirSync(data, { recursive: true });
  const child = spawn(input.binary, ["serve"], {
    env: {
      ...process.env,
      TENURE_DATA_DIR: data,
      TENURE_LISTEN: "127.0.0.1:0",
      TENURE_WEB_LISTEN: web,
      TENURE_H3_LISTEN: "",
      TENURE_GROUP_COUNT: "16",
      ...environment,
    },
    stdio: ["ignore", "ignore", "pipe"],
  });
  children.add(child);
  let said = "";
  const ready = await new Promise((resolve, reject) => {
    child.stderr.on("data", (chunk) => {
      said += chunk;
      // The last piece may be a part of a line.
      const lines = said.split("\n").slice(0, -1);
      const line = lines.find((one) => one.startsWith("tenure: ready"));
      if (line) resolve(line);
    });
    child.on("exit", () => reject(new Error(`the daemon ended:\n${said}`)));
  });
  const part = (word) => new RegExp(`${word} ([^,\\s]+)`).exec(ready)?.[1];
  return {
    url: `http://${web}`,
    web,
    data,
    grpc: part("grpc"),
    gossip: part("gossip"),
    said: () => said,
    stop: (signal = "SIGKILL") =>
      new Promise((resolve) => {
        child.removeAllListeners("exit");
        child.on("exit", resolve);
        child.kill(signal);
        children.delete(child);
      }),
  };
}

async function json(daemon, rpc, body, headers = {}) {
  const response = await fetch(`${daemon.url}/v1/${rpc}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  assert.equal(response.status, 200, `${rpc}: ${JSON.stringify(answer)}`);
  return answer;
}

const holder = (name, purpose = "") => ({ name, host: "build-7", pid: 4711, purpose, labels: {} });

function acquire(daemon, ownerId, paths, more = {}) {
  const requests = paths.map((path) => (typeof path === "string" ? { path } : path));
  return json(daemon, "acquire", { ownerId, ttlMs: 600_000, queueTtlMs: 600_000, requests, ...more });
}

async function eventually(what, check) {
  const end = Date.now() + LIMIT;
  let last;
  for (;;) {
    try {
      const found = await check();
      if (found) return found;
      last = found;
    } catch (error) {
      last = error;
    }
    assert(Date.now() < end, `${what}: ${last}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const browser = await chromium.launch({ executablePath: input.chromium, args: ["--no-sandbox"] });

/** Opens a page that collects everything that goes wrong in it. */
async function open(daemon, { width = 1440, height = 900, colorScheme = "light", expected = [] } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme });
  context.setDefaultTimeout(LIMIT);
  const page = await context.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (!["error", "warning"].includes(message.type())) return;
    // The browser logs every refused or failed request; these are part of what is shown.
    const text = message.text();
    if (text.startsWith("Failed to load resource") && expected.some((one) => text.includes(one))) return;
    wrong.push(`console: ${text}`);
  });
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
  });
  await page.goto(`${daemon.url}/console`);
  return { page, context, wrong };
}

async function axe(page, what) {
  // The page's own policy forbids foreign scripts, so axe runs in the world of the test.
  const session = await page.context().newCDPSession(page);
  const { frameTree } = await session.send("Page.getFrameTree");
  const { executionContextId } = await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id });
  await session.send("Runtime.evaluate", { contextId: executionContextId, expression: AXE });
  const { result, exceptionDetails } = await session.send("Runtime.evaluate", {
    contextId: executionContextId,
    awaitPromise: true,
    returnByValue: true,
    expression:
      "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => v.id + ': ' + v.nodes.slice(0, 3).map(n => n.target.join(' ') + ' ' + (n.failureSummary || '')).join(' | ')))",
  });
  assert(!exceptionDetails, JSON.stringify(exceptionDetails));
  assert.deepEqual(result.value, [], `axe: ${what}`);
  await session.detach();
  summary.axe += 1;
}

async function shot(page, name) {
  if (!input.screenshots) return;
  await page.screenshot({ path: `${input.screenshots}/${name}.png` });
  summary.screenshots += 1;
}

const visit = async (page, hash, wait) => {
  await page.evaluate((to) => {
    location.hash = to;
  }, hash);
  await page.waitForSelector(wait);
  await page.waitForTimeout(50);
};

const fits = async (page, what) => {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(over <= 0, `${what} is ${over} px too wide`);
};

const PATH = "deploy:/prod/web";
const PAGES = [
  ["overview", "#/overview", ".stats"],
  ["locks", "#/locks", ".row"],
  ["lock", `#/lock/${encodeURIComponent(PATH)}`, ".facts"],
  ["waits", "#/waits", ".drawing svg"],
  ["owners", "#/owners", "tbody tr"],
  ["owner", "#/owner/ci-1", "tbody tr"],
  ["policies", "#/policies", "tbody tr"],
  ["cluster", "#/cluster", ".groups"],
  ["activity", "#/activity", "tbody tr"],
];

const HOSTILE = [
  "<img src=x onerror=window.hit=1>",
  "\u202Egnp.exe",
  "\u2066a\u2069\u200b",
  "🔒🧵家族",
  "'\"`;$(reboot)",
  "a".repeat(1500),
];

async function fill(daemon) {
  await acquire(daemon, "ci-1", [PATH], { holder: holder("deploy.sh", "release 4.2 to production") });
  for (const [i, name] of ["ci-2", "ci-3", "nightly"].entries()) {
    await acquire(daemon, name, [PATH], { holder: holder(`job ${i + 2}`, "waits for the release") });
  }
  for (let i = 0; i < 40; i++) {
    await acquire(daemon, `worker-${i % 7}-${i}`, [`vol:/team-${i % 5}/disk-${i}/part`], { holder: holder("backup", `volume ${i}`) });
  }
  await acquire(daemon, "reader-1", [{ path: "vol:/team-1/shared", mode: 1 }], { holder: holder("report") });
  await acquire(daemon, "reader-2", [{ path: "vol:/team-1/shared", mode: 1 }], { holder: holder("report") });
  await json(daemon, "setNamespacePolicy", { namespace: "jobs:/pool", algorithm: 4 });
  await acquire(daemon, "render-1", [{ path: "jobs:/pool/gpu", permits: 2 }]);
  // Two owners that wait for each other.
  await acquire(daemon, "alice", ["db:/orders"], { holder: holder("migrate") });
  await acquire(daemon, "bob", ["db:/billing"], { holder: holder("invoice") });
  await acquire(daemon, "alice", ["db:/billing"], { holder: holder("migrate") });
  await acquire(daemon, "bob", ["db:/orders"], { holder: holder("invoice") });
  for (const owner of ["past-1", "past-2", "past-3"]) {
    await acquire(daemon, owner, ["deploy:/staging"], { holder: holder("deploy.sh") });
    await json(daemon, "releaseAll", { ownerId: owner });
  }
}

async function anEmptyDaemonTeaches() {
  const daemon = await serve("empty");
  const { page, wrong, context } = await open(daemon);
  await page.waitForSelector(".empty");
  const commands = await page.locator(".empty code").allTextContents();
  assert.equal(commands.length, 3);
  assert(commands[0].startsWith("tenure run "));
  await axe(page, "empty overview");
  await shot(page, "empty");
  for (const [name, hash] of [["waits", "#/waits"], ["policies", "#/policies"], ["activity", "#/activity"], ["locks", "#/locks"]]) {
    await visit(page, hash, ".empty");
    await axe(page, `empty ${name}`);
  }
  // The first lock appears by itself.
  await acquire(daemon, "amy", ["demo:/first"]);
  await visit(page, "#/locks", ".row");
  await page.locator(".row", { hasText: "demo" }).waitFor();
  assert.deepEqual(wrong, []);
  await context.close();
  await daemon.stop();
}

async function everyPage(daemon) {
  for (const [width, height] of [[360, 740], [1440, 900], [2560, 1300]]) {
    for (const colorScheme of width > 2000 ? ["light"] : ["light", "dark"]) {
      const { page, wrong, context } = await open(daemon, { width, height, colorScheme });
      await page.waitForSelector(".side");
      for (const [name, hash, wait] of PAGES) {
        await visit(page, hash, wait);
        if (name === "locks" && width > 1000) {
          await page.locator(".row", { hasText: "vol" }).locator(".caret").first().click();
          await page.locator(".row", { hasText: "team-1" }).locator(".caret").first().click();
          await page.locator(".row", { hasText: "shared" }).waitFor();
        }
        if (name === "overview" && width === 1440) await page.waitForTimeout(7000);
        await fits(page, `${name} at ${width}`);
        // Wider pages have the same parts as those of 1440 px.
        if (width < 2000) await axe(page, `${name} at ${width}, ${colorScheme}`);
        if (width === 1440 || (width === 360 && ["overview", "lock", "locks"].includes(name))) {
          await shot(page, `${name}-${width}-${colorScheme}`);
        }
        summary.pages += 1;
      }
      assert.deepEqual(wrong, [], `${width} ${colorScheme}`);
      await context.close();
    }
  }
}

async function theKeyboardSuffices(daemon) {
  const { page, wrong, context } = await open(daemon);
  await page.waitForSelector(".stats");
  await page.keyboard.press("2");
  await page.waitForSelector(".row");
  await page.locator(".tree").focus();
  await page.keyboard.press("Home");
  // deploy is a handler with a branch below it.
  for (let i = 0; i < 12 && !(await page.locator(".row.current", { hasText: "deploy" }).count()); i++) await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowRight");
  await page.locator(".row", { hasText: "prod" }).waitFor();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowRight");
  await page.locator(".row", { hasText: "web" }).waitFor();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".facts");
  assert.equal(await page.locator("h1 .path").textContent(), PATH);
  await page.keyboard.press("?");
  await page.locator("dialog[open]").waitFor();
  await axe(page, "help");
  await page.keyboard.press("Escape");
  await page.locator("dialog[open]").waitFor({ state: "detached" });
  await page.keyboard.press("/");
  await page.keyboard.type("alice");
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: "alice" }).waitFor();
  assert.deepEqual(wrong, []);
  await context.close();
}

async function theLockPageAnswersWhy(daemon) {
  const { page, wrong, context } = await open(daemon);
  await visit(page, `#/lock/${encodeURIComponent(PATH)}`, ".facts");
  const text = await page.locator("main").innerText();
  for (const part of ["deploy.sh", "build-7", "4711", "release 4.2 to production", "ci-1"]) assert(text.includes(part), part);
  const queue = await page.locator("section[aria-label=Queue] tbody tr").count();
  assert.equal(queue, 3);
  await page.locator("section[aria-label=History] tbody tr", { hasText: "still held" }).first().waitFor();
  await visit(page, `#/lock/${encodeURIComponent("deploy:/staging")}`, "section[aria-label=History] tbody tr");
  const rows = await page.locator("section[aria-label=History] tbody tr").allInnerTexts();
  for (const owner of ["past-1", "past-2", "past-3"]) {
    // The rows name the program, and the owner is behind the link.
    assert(rows.length === 3 && rows.every((row) => row.includes("released")), `${owner}: ${rows}`);
  }
  await shot(page, "history-1440-light");
  assert.deepEqual(wrong, []);
  await context.close();
}

async function actionsDoWhatTheySay(daemon) {
  const { page, wrong, context } = await open(daemon, { expected: ["412"] });
  // Break: by generation, with a reason.
  await visit(page, `#/lock/${encodeURIComponent(PATH)}`, ".facts");
  await page.getByRole("button", { name: "Break", exact: true }).click();
  const dialog = page.locator("dialog[open]");
  await dialog.waitFor();
  const said = await dialog.innerText();
  assert(said.includes("deploy.sh") && said.includes(PATH), said);
  assert(await dialog.getByRole("button", { name: "Break the hold" }).isDisabled(), "a reason is required");
  await dialog.locator("input").fill("holder is dead");
  assert((await dialog.locator("code").innerText()).startsWith("tenure break --force --id ci-1"));
  await axe(page, "break dialog");
  await shot(page, "break-1440-light");
  await dialog.getByRole("button", { name: "Break the hold" }).click();
  await dialog.waitFor({ state: "detached" });
  await page.locator(".facts", { hasText: "ci-2" }).waitFor();
  assert.equal((await json(daemon, "inspectPath", { path: PATH })).writeOwner, "ci-2");
  summary.actions += 1;
  // Ask.
  await page.getByRole("button", { name: "Ask to release" }).click();
  await page.locator("dialog[open]").getByRole("button", { name: "Ask", exact: true }).click();
  await page.locator(".toast").waitFor();
  const renewed = await json(daemon, "renew", { ownerId: "ci-2", ttlMs: 600_000 });
  assert.equal(renewed.revokeRequested, true);
  summary.actions += 1;
  // Policy: set and remove.
  await visit(page, "#/policies", "tbody tr");
  await page.getByRole("button", { name: "Set a policy" }).click();
  await page.locator("dialog[open] input").fill("tmp:/x");
  await page.locator("dialog[open] select").selectOption("1");
  await page.getByRole("button", { name: "Set the policy" }).click();
  const row = page.locator("tbody tr", { hasText: "tmp:/x" });
  await row.waitFor();
  assert((await row.innerText()).includes("point_rw"));
  await row.getByRole("button", { name: "Remove" }).click();
  await page.locator("dialog[open]").getByRole("button", { name: "Remove" }).click();
  await row.waitFor({ state: "detached" });
  summary.actions += 2;
  // A deadlock is marked, and one click and a confirmation end it.
  await visit(page, "#/waits", ".deadlock");
  const cycle = await page.locator(".deadlock").innerText();
  assert(cycle.includes("alice") && cycle.includes("bob"), cycle);
  assert((await page.locator("path.edge.bad").count()) >= 2);
  await page.getByRole("button", { name: "Break the hold of bob" }).first().click();
  await page.locator("dialog[open] input").fill("deadlock");
  await page.locator("dialog[open]").getByRole("button", { name: "Break the hold" }).click();
  await page.locator(".deadlock").waitFor({ state: "detached" });
  assert.equal((await json(daemon, "inspectPath", { path: "db:/billing" })).writeOwner, "alice");
  summary.actions += 1;
  // Everything of one owner.
  await visit(page, "#/owner/reader-1", "tbody tr");
  await page.getByRole("button", { name: "End everything it has" }).click();
  await page.getByRole("button", { name: "End all" }).click();
  await page.locator("h1", { hasText: "has nothing" }).waitFor();
  summary.actions += 1;
  // A single node refuses to be drained, and the page says why.
  await visit(page, "#/cluster", "tbody tr");
  await page.getByRole("button", { name: "Drain" }).click();
  await page.locator("dialog[open]").getByRole("button", { name: "Drain" }).click();
  await eventually("drained or refused", async () => (await page.locator("dialog[open] .problem").count()) || (await page.locator(".pill", { hasText: "draining" }).count()));
  assert.deepEqual(wrong, []);
  await context.close();
}

async function hostileTextIsShownEscaped(daemon) {
  for (const [i, text] of HOSTILE.entries()) {
    await acquire(daemon, `own ${text.slice(0, 900)}`, [`evil:/${i}/${text.replaceAll("/", "%")}`], {
      holder: { name: text.slice(0, 400), host: text.slice(0, 400), pid: 1, purpose: text.slice(0, 400), labels: {} },
    });
  }
  await acquire(daemon, "long", [`evil:/9/${Array.from({ length: 80 }, (_, i) => "segment-with-a-name-" + i).join("/")}`.slice(0, 4000)]);
  for (const width of [360, 1440]) {
    const { page, wrong, context } = await open(daemon, { width, height: 800 });
    await visit(page, "#/activity", "tbody tr");
    await fits(page, `hostile activity at ${width}`);
    await shot(page, `hostile-activity-${width}`);
    for (const [i, text] of HOSTILE.entries()) {
      const path = `evil:/${i}/${text.replaceAll("/", "%")}`;
      await visit(page, `#/lock/${encodeURIComponent(path)}`, ".facts");
      await fits(page, `hostile path ${i} at ${width}`);
      await axe(page, `hostile path ${i} at ${width}`);
      const shown = await page.locator("body").innerText();
      assert(!/[\u202a-\u202e\u2066-\u2069\u200b]/.test(shown), `direction marks of ${i} are shown as they are`);
    }
    await visit(page, "#/owners", "tbody tr");
    await fits(page, `hostile owners at ${width}`);
    assert.equal(await page.evaluate(() => window.hit), undefined, "markup was executed");
    assert.equal(await page.locator("main img").count(), 0);
    assert.deepEqual(wrong, []);
    await context.close();
  }
}

async function manyLocksStaySmooth(daemon) {
  for (let i = 0; i < 40; i++) {
    await acquire(daemon, `bulk-${i}`, Array.from({ length: 250 }, (_, j) => `bulk:/all/n${String(i * 250 + j).padStart(6, "0")}`));
  }
  const { page, wrong, context } = await open(daemon);
  await visit(page, `#/locks?prefix=${encodeURIComponent("bulk:/all")}`, ".row");
  const frames = await page.evaluate(async () => {
    const tree = document.querySelector(".tree");
    const times = [];
    let last = performance.now();
    for (let i = 0; i < 240; i++) {
      tree.scrollTop += 900;
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      times.push(now - last);
      last = now;
    }
    times.sort((a, b) => a - b);
    return { rows: document.querySelectorAll(".row").length, median: times[120], worst: times[239], top: tree.scrollTop };
  });
  assert(frames.rows < 120, `${frames.rows} rows exist at once`);
  assert(frames.top > 30_000, `scrolled to ${frames.top}`);
  summary.frames = frames;
  assert.deepEqual(wrong, []);
  await context.close();
}

async function sessionsEndWithTheirKey() {
  const daemon = await serve("closed", { TENURE_LOOPBACK: "authenticated" });
  const rootFile = `${daemon.data}/root.key`;
  const root = await eventually("root.key", () => readFileSync(rootFile, "utf8").trim());
  const auth = { authorization: `Bearer ${root}` };
  await eventually("the key is known", async () => (await fetch(`${daemon.url}/v1/whoami`, { headers: auth })).ok);
  await json(daemon, "acquire", { ownerId: "amy", ttlMs: 600_000, requests: [{ path: "t:/a/b" }] }, auth);
  // Liveness needs no credentials, and everything else does.
  assert.equal((await fetch(`${daemon.url}/healthz`)).status, 200);
  assert.equal((await fetch(`${daemon.url}/readyz`)).status, 200);
  assert.equal((await fetch(`${daemon.url}/v1/whoami`)).status, 401);
  const { page, wrong, context } = await open(daemon, { expected: ["401"] });
  await page.waitForSelector(".sign-in");
  await axe(page, "sign-in");
  await shot(page, "sign-in");
  await page.locator("input[type=password]").fill("tnr_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.locator("[role=alert]").waitFor();
  await page.locator("input[type=password]").fill(root);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForSelector(".stats");
  const cookie = (await context.cookies()).find((one) => one.name === "tenure_session");
  assert(cookie.httpOnly && cookie.sameSite === "Strict", JSON.stringify(cookie));
  assert(!cookie.value.includes(root.split("_")[2]), "the cookie contains the key");
  // The cookie alone, as another page would cause it to be sent, proves nothing.
  const bare = await fetch(`${daemon.url}/v1/whoami`, { headers: { cookie: `tenure_session=${cookie.value}` } });
  assert.equal(bare.status, 401);
  const used = await fetch(`${daemon.url}/v1/whoami`, { headers: { cookie: `tenure_session=${cookie.value}`, "x-tenure-console": "1" } });
  assert.equal(used.status, 200);
  const forged = cookie.value.replace(/\.\d+\./, ".99999999999999.");
  const refused = await fetch(`${daemon.url}/v1/whoami`, { headers: { cookie: `tenure_session=${forged}`, "x-tenure-console": "1" } });
  assert.equal(refused.status, 401);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForSelector(".sign-in");
  // A key that may only look: the page is read-only and says which verb is missing.
  const run = (...words) =>
    new Promise((resolve, reject) => {
      const child = spawn(input.binary, words, { env: { ...process.env, TENURE_URL: `http://${daemon.grpc}`, TENURE_CLIENT_AUTH_TOKEN: root } });
      let out = "";
      let err = "";
      child.stdout.on("data", (chunk) => (out += chunk));
      child.stderr.on("data", (chunk) => (err += chunk));
      child.on("exit", (code) => (code === 0 ? resolve(out) : reject(new Error(`${words}: ${err}`))));
    });
  const made = await run("auth", "key", "create", "viewer");
  const key = /tnr_[0-9a-f_]+/.exec(made)[0];
  await run("auth", "grant", "key:viewer", "observe,status");
  await page.locator("input[type=password]").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForSelector(".stats");
  await visit(page, `#/lock/${encodeURIComponent("t:/a/b")}`, ".facts");
  assert(await page.getByRole("button", { name: "Break", exact: true }).isDisabled());
  assert((await page.locator("main").innerText()).includes("needs the verb break"));
  await axe(page, "read-only");
  await shot(page, "read-only-1440-light");
  // The session ends with its key.
  await run("auth", "key", "revoke", "viewer");
  await page.waitForSelector(".sign-in");
  const unexpected = wrong.filter((one) => !one.includes("403"));
  assert.deepEqual(unexpected, []);
  await context.close();
  await daemon.stop();
}

async function aRestartedDaemonIsFoundAgain(daemon) {
  const { page, context } = await open(daemon);
  await visit(page, `#/lock/${encodeURIComponent("deploy:/after")}`, "h1 .pill");
  assert((await page.locator("h1").innerText()).includes("free"));
  await daemon.stop();
  await page.locator(".reconnecting").waitFor();
  await axe(page, "reconnecting");
  await shot(page, "reconnecting-1440-light");
  const again = await serve("main", { TENURE_WEB_LISTEN: daemon.web });
  await acquire(again, "late", ["deploy:/after"]);
  await page.locator(".reconnecting").waitFor({ state: "detached" });
  await page.locator("h1", { hasText: "held" }).waitFor();
  await context.close();
  return again;
}

async function aClusterIsShownAsItIs() {
  const token = "0123456789abcdef0123456789abcdef";
  const nodes = [];
  for (let i = 0; i < 3; i++) {
    const seeds = nodes.map((node) => node.gossip).join(",");
    nodes.push(
      await serve(`node-${i}`, {
        TENURE_NODE_ID: `node-${i}`,
        TENURE_INTERNAL_AUTH_TOKEN: token,
        TENURE_RAFT_ADDR: "http://127.0.0.1:0",
        TENURE_GOSSIP_ADDR: "127.0.0.1:0",
        TENURE_STABILITY_WINDOW_SECS: "0",
        TENURE_LEADER_BALANCE_INTERVAL_SECS: "1",
        TENURE_MAX_CONCURRENT_RECONCILES: "64",
        TENURE_GOSSIP_SEED_ANNOUNCE_INTERVAL_MS: "200",
        ...(seeds ? { TENURE_SEED_NODES: seeds } : { TENURE_BOOTSTRAP: "true" }),
      }),
    );
  }
  await eventually("the cluster has settled", async () => {
    const status = await (await fetch(`${nodes[0].url}/v1/cluster/status`)).json();
    return status.healthy && status.nodes.length === 3 && status.groups.every((group) => group.voters.length === 3) && status.nodes.every((node) => node.leads > 0);
  });
  for (let i = 0; i < 60; i++) await acquire(nodes[i % 3], `job-${i}`, [`fleet:/host-${i}/disk`], { holder: holder("backup") });
  await acquire(nodes[1], "second", ["fleet:/host-1/disk"]);
  const { page, wrong, context } = await open(nodes[0]);
  await visit(page, "#/cluster", "tbody tr");
  await page.locator(".health.good").waitFor();
  assert.equal(await page.locator("section[aria-label=Nodes] tbody tr").count(), 3);
  await axe(page, "cluster of three");
  await shot(page, "cluster-three-1440-light");
  // What other nodes lead is in the tree of this one.
  await visit(page, `#/locks?prefix=fleet`, ".row");
  const listed = await json(nodes[2], "listChildren", { prefix: "fleet", page: 512 });
  assert.equal(listed.children.length, 60);
  assert.equal(listed.children.reduce((sum, child) => sum + child.holds, 0), 60);
  assert.equal((await json(nodes[2], "listWaits", {})).waits.length, 1);
  // Another node is lost: the page says so, and the locks are still right.
  await nodes[2].stop();
  await visit(page, "#/cluster", "tbody tr");
  await page.locator(".pill", { hasText: "down" }).waitFor();
  await shot(page, "cluster-down-1440-light");
  await eventually("all groups answer again", async () => {
    const found = await json(nodes[0], "listChildren", { prefix: "fleet", page: 512 });
    return found.missingGroups === 0 && found.children.length === 60;
  });
  // The history of a lock that the lost node may have led is still there.
  const history = await json(nodes[0], "history", { prefix: "fleet:/host-1/disk" });
  assert.deepEqual(history.spans.map((span) => [span.owner, span.grantedMs > 0]), [["job-1", true], ["second", false]]);
  // Drain, then undo.
  await page.locator("section[aria-label=Nodes] tbody tr", { hasText: "node-1" }).getByRole("button", { name: "Drain" }).click();
  await page.locator("dialog[open]").getByRole("button", { name: "Drain" }).click();
  await page.locator(".pill", { hasText: "draining" }).waitFor();
  await page.getByRole("button", { name: "Stop draining" }).click();
  await page.locator("dialog[open]").getByRole("button", { name: "Stop draining" }).click();
  await page.locator(".pill", { hasText: "draining" }).waitFor({ state: "detached" });
  summary.actions += 2;
  assert.deepEqual(wrong, []);
  await context.close();
  for (const node of nodes.slice(0, 2)) await node.stop();
}

async function step(name, work) {
  const begun = Date.now();
  process.stderr.write(`${name} … `);
  const done = await work();
  process.stderr.write(`${Date.now() - begun} ms\n`);
  return done;
}

try {
  const only = input.only;
  const wanted = (name) => !only || only === name;
  if (wanted("empty")) await step("an empty daemon teaches", anEmptyDaemonTeaches);
  if (wanted("main")) {
    let daemon = await serve("main");
    await fill(daemon);
    await step("every page", () => everyPage(daemon));
    await step("the keyboard suffices", () => theKeyboardSuffices(daemon));
    await step("the lock page answers why", () => theLockPageAnswersWhy(daemon));
    await step("actions do what they say", () => actionsDoWhatTheySay(daemon));
    await step("hostile text is shown escaped", () => hostileTextIsShownEscaped(daemon));
    await step("many locks stay smooth", () => manyLocksStaySmooth(daemon));
    daemon = await step("a restarted daemon is found again", () => aRestartedDaemonIsFoundAgain(daemon));
    await daemon.stop();
  }
  if (wanted("sessions")) await step("sessions end with their key", sessionsEndWithTheirKey);
  if (wanted("cluster")) await step("a cluster is shown as it is", aClusterIsShownAsItIs);
  console.log(JSON.stringify(summary));
} finally {
  for (const child of children) child.kill("SIGKILL");
  await browser.close();
}
