import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, Status, get, post, signOut } from "./api";
import { shown } from "./format";
import { connection, failed, go, link, loadSession, session, signedOut, toast, usePoll, useRoute, useStore } from "./state";
import { Dialog, Mark } from "./ui";
import { Activity } from "./pages/activity";
import { Cluster } from "./pages/cluster";
import { Lock } from "./pages/lock";
import { Locks } from "./pages/locks";
import { Overview, health } from "./pages/overview";
import { Owner, Owners } from "./pages/owners";
import { Policies } from "./pages/policies";
import { Waits } from "./pages/waits";

const PAGES: [string, string, string][] = [
  ["overview", "Overview", "M3 12.5 8 7l4 4 5-6M3 17h14"],
  ["locks", "Locks", "M6 9V6.5a4 4 0 0 1 8 0V9M4.5 9h11v8h-11z"],
  ["waits", "Waits", "M5 5h5a5 5 0 0 1 5 5v5m0 0-2.5-2.5M15 15l2.5-2.5M5 3v4"],
  ["owners", "Owners", "M10 9.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM4 17c.6-3.4 3-5 6-5s5.4 1.6 6 5"],
  ["policies", "Policies", "M5 3.5h10v13H5zM7.5 7.5h5m-5 3h5m-5 3h3"],
  ["cluster", "Cluster", "M10 3.5v4m0 0-5 5m5-5 5 5M10 6.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM5 15.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM15 15.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3z"],
  ["activity", "Activity", "M3 10h3l2-6 4 12 2-6h3"],
];

function App() {
  const route = useRoute();
  const who = useStore(session);
  const out = useStore(signedOut);
  const [help, setHelp] = useState(false);
  useEffect(() => {
    loadSession();
  }, []);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.key === "Escape" && typing) target.blur();
      if (typing) return;
      if (event.key === "/") {
        event.preventDefault();
        document.getElementById("search")?.focus();
      } else if (event.key === "?") setHelp(true);
      else if (/^[1-7]$/.test(event.key)) go(link(PAGES[Number(event.key) - 1]![0]));
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const titles: Record<string, string> = Object.fromEntries(PAGES.map(([page, title]) => [page, title]));
  useEffect(() => {
    const name = route.argument || titles[route.page] || "Console";
    document.title = `${shown(name, 60)} · Tenure`;
  }, [route.page, route.argument]);
  if (out !== null && !who) return <SignIn why={out} />;
  if (!who) return <Reconnecting />;
  const page = {
    overview: <Overview />,
    locks: <Locks />,
    lock: <Lock key={route.argument} path={route.argument} />,
    waits: <Waits />,
    owners: <Owners />,
    owner: <Owner key={route.argument} owner={route.argument} />,
    policies: <Policies />,
    cluster: <Cluster />,
    activity: <Activity />,
  }[route.page] ?? <Overview />;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to the content
      </a>
      <Side page={route.page} onHelp={() => setHelp(true)} />
      <div class="stage">
        <header class="top">
          <Bar />
          <Reconnecting />
        </header>
        {page}
      </div>
      <Toast />
      {help ? <Help onClose={() => setHelp(false)} /> : null}
    </>
  );
}

function Side({ page, onHelp }: { page: string; onHelp: () => void }) {
  const active = page === "lock" ? "locks" : page === "owner" ? "owners" : page;
  return (
    <nav class="side" aria-label="Pages">
      <a class="brand" href={link("overview")} aria-label="Tenure, overview">
        <img src="/console/icon.svg" alt="" width="24" height="24" />
        <span>Tenure</span>
      </a>
      <ul>
        {PAGES.map(([name, title, icon]) => (
          <li key={name}>
            <a href={link(name)} aria-current={active === name ? "page" : undefined}>
              <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true">
                <path d={icon} fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" />
              </svg>
              <span>{title}</span>
            </a>
          </li>
        ))}
      </ul>
      <button type="button" class="quiet help" onClick={onHelp}>
        Keys <kbd>?</kbd>
      </button>
    </nav>
  );
}

function Bar() {
  const who = useStore(session);
  const [text, setText] = useState("");
  const status = usePoll(() => get<Status>("/v1/cluster/status?groups=0"), 5000, "bar");
  // What was true before the node stopped answering is not shown as true now.
  const connected = useStore(connection) === "connected";
  const state = status.data && connected ? health(status.data) : null;
  return (
    <div class="bar">
      <form
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          const path = text.trim();
          if (!path) return;
          if (path.includes(":/")) go(link("lock", path));
          else go(link("owner", path));
          setText("");
          (document.activeElement as HTMLElement | null)?.blur();
        }}
      >
        <input
          id="search"
          type="search"
          placeholder="Path (vol:/a/b) or owner"
          aria-label="Go to a path or an owner"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <kbd aria-hidden="true">/</kbd>
      </form>
      {state ? (
        <a class="pulse" href={link("cluster")}>
          <Mark tone={state.tone} /> {{ good: "healthy", busy: "changing", warn: "degraded", bad: "failing", calm: "" }[state.tone]}
        </a>
      ) : null}
      <span class="who">
        <bdi>{shown(who?.principal ?? "", 32)}</bdi>
        {who?.anonymous ? (
          <button type="button" class="quiet" onClick={() => { session.set(null); signedOut.set(""); }}>
            Sign in
          </button>
        ) : (
          <button
            type="button"
            class="quiet"
            onClick={async () => {
              try {
                await signOut();
              } catch (error) {
                failed(error);
              }
              session.set(null);
              loadSession();
            }}
          >
            Sign out
          </button>
        )}
      </span>
    </div>
  );
}

function Reconnecting() {
  const state = useStore(connection);
  const out = useStore(signedOut);
  useEffect(() => {
    if (state === "connected" || session.value) return;
    const timer = window.setInterval(loadSession, 700);
    return () => clearInterval(timer);
  }, [state, out]);
  if (state === "connected") return null;
  return (
    <p class="reconnecting" role="status">
      <Mark tone="warn" /> Reconnecting: this node does not answer. What is shown may be old.
    </p>
  );
}

function Toast() {
  const message = useStore(toast);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {message ? <p class={message.bad ? "toast bad" : "toast"}>{message.text}</p> : null}
    </div>
  );
}

function SignIn({ why }: { why: string }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    field.current?.focus();
    document.title = "Sign in · Tenure";
  }, []);
  const send = async () => {
    try {
      await post("/console/session", { key });
      setKey("");
      await loadSession();
    } catch (problem) {
      setError(problem instanceof ApiError ? problem.message : "the daemon does not answer");
    }
  };
  return (
    <main id="main" class="sign-in">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <img src="/console/icon.svg" alt="" width="40" height="40" />
        <h1>Sign in to Tenure</h1>
        {why && !error ? (
          <p class="dim">{why.includes("session") || why.includes("revoked") || why.includes("expired") ? "Your session has ended." : "This daemon needs a key."}</p>
        ) : null}
        <label class="field">
          API key
          <input ref={field} type="password" autocomplete="current-password" value={key} onInput={(event) => setKey(event.currentTarget.value)} placeholder="tnr_…" />
        </label>
        {error ? (
          <p class="problem" role="alert">
            {shown(error, 300)}
          </p>
        ) : null}
        <button type="submit" class="solid" disabled={!key}>
          Sign in
        </button>
        <p class="dim small">
          An administrator makes a key with <code>tenure auth key create NAME</code>. The first one is in <code>root.key</code> of the
          daemon's data directory.
        </p>
        {why === "" ? (
          <button type="button" class="quiet" onClick={() => loadSession()}>
            Go on without a key
          </button>
        ) : null}
      </form>
    </main>
  );
}

function Help({ onClose }: { onClose: () => void }) {
  const keys: [string, string][] = [
    ["/", "search for a path or an owner"],
    ["1 … 7", "pages, from Overview to Activity"],
    ["↑ ↓ PgUp PgDn", "move in the tree"],
    ["→ ←", "open and close a branch"],
    ["Enter", "show the lock"],
    ["Esc", "leave a field or a dialog"],
    ["?", "this help"],
  ];
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        {keys.map(([name, what]) => (
          <div key={name}>
            <dt>
              <kbd>{name}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <div class="buttons">
        <button type="button" class="solid" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

render(<App />, document.getElementById("app")!);
