// State of the page: route, session, connection, polling.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, Unreachable, WhoAmI, get } from "./api";

type Listener = () => void;

class Store<T> {
  private listeners = new Set<Listener>();
  constructor(public value: T) {}
  set(value: T) {
    if (value === this.value) return;
    this.value = value;
    for (const listener of this.listeners) listener();
  }
  subscribe(listener: Listener) {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }
}

export function useStore<T>(store: Store<T>): T {
  const [, again] = useState(0);
  useEffect(() => store.subscribe(() => again((n) => n + 1)), [store]);
  return store.value;
}

export const connection = new Store<"connected" | "reconnecting">("connected");
export const session = new Store<WhoAmI | null>(null);
export const signedOut = new Store<string | null>(null);
export const toast = new Store<{ text: string; bad: boolean } | null>(null);

let toastTimer = 0;
export function say(text: string, bad = false) {
  toast.set({ text, bad });
  clearTimeout(toastTimer);
  toastTimer = window.setTimeout(() => toast.set(null), 6000);
}

export async function loadSession() {
  try {
    session.set(await get<WhoAmI>("/v1/whoami"));
    signedOut.set(null);
    connection.set("connected");
  } catch (error) {
    failed(error);
  }
}

/** Notes a failure for the whole page. */
export function failed(error: unknown) {
  if (error instanceof Unreachable || (error instanceof ApiError && error.status === 503)) {
    connection.set("reconnecting");
  } else if (error instanceof ApiError && error.status === 401) {
    session.set(null);
    signedOut.set(error.message);
  }
}

/** Whether the session has a verb for a path; without a path, everywhere. */
export function may(who: WhoAmI | null, verb: string, path?: string): boolean {
  if (!who) return false;
  if (who.administrator) return true;
  return who.grants.some((grant) => {
    if (!grant.verbs.includes(verb) && !grant.verbs.includes("*")) return false;
    if (grant.at === "*" || grant.at === "") return true;
    if (path === undefined) return false;
    const inside = path === grant.at || path.startsWith(grant.at.endsWith("/") ? grant.at : `${grant.at}/`);
    return inside || (!grant.at.includes(":") && path.startsWith(`${grant.at}:`));
  });
}

export type Polled<T> = { data: T | null; error: ApiError | null; refresh: () => void; at: number };

/** Asks again and again, never twice at a time, not while the page is hidden. */
export function usePoll<T>(ask: () => Promise<T>, everyMs: number, key: string): Polled<T> {
  const [state, set] = useState<{ key: string; data: T | null; error: ApiError | null; at: number }>({
    key,
    data: null,
    error: null,
    at: 0,
  });
  const asking = useRef(ask);
  asking.current = ask;
  const trigger = useRef<() => void>(() => {});
  useEffect(() => {
    let alive = true;
    let timer = 0;
    let busy = false;
    let again = false;
    const run = async () => {
      if (!alive) return;
      if (busy) {
        again = true;
        return;
      }
      clearTimeout(timer);
      if (document.hidden) {
        timer = window.setTimeout(run, everyMs);
        return;
      }
      busy = true;
      let wait = everyMs;
      try {
        const data = await asking.current();
        if (alive) set({ key, data, error: null, at: performance.now() });
        connection.set("connected");
      } catch (error) {
        failed(error);
        const known = error instanceof ApiError ? error : null;
        if (alive && known) set((old) => ({ ...old, key, error: known }));
        // After a lost node the page must be right within a second.
        wait = Math.min(everyMs, 700);
      }
      busy = false;
      if (!alive) return;
      timer = window.setTimeout(run, again ? 0 : wait);
      again = false;
    };
    trigger.current = run;
    const onShow = () => void (document.hidden || run());
    document.addEventListener("visibilitychange", onShow);
    run();
    return () => {
      alive = false;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onShow);
    };
  }, [key, everyMs]);
  const fresh = state.key === key;
  return {
    data: fresh ? state.data : null,
    error: fresh ? state.error : null,
    at: fresh ? state.at : 0,
    refresh: () => trigger.current(),
  };
}

/** Renders again so often, for durations that run. */
export function useClock(everyMs = 250): number {
  const [now, set] = useState(performance.now());
  useEffect(() => {
    const timer = window.setInterval(() => {
      if (!document.hidden) requestAnimationFrame(() => set(performance.now()));
    }, everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

export type Route = { page: string; argument: string; query: URLSearchParams };

function parse(): Route {
  const hash = location.hash.replace(/^#\/?/, "");
  const [path = "", query = ""] = hash.split("?");
  const [page = "", argument = ""] = path.split("/", 2).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return "";
    }
  });
  return { page: page || "overview", argument, query: new URLSearchParams(query) };
}

export function useRoute(): Route {
  const [route, set] = useState(parse);
  useEffect(() => {
    const changed = () => set(parse());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

export const link = (page: string, argument = "", query: Record<string, string> = {}) => {
  const tail = new URLSearchParams(query).toString();
  return `#/${page}${argument ? `/${encodeURIComponent(argument)}` : ""}${tail ? `?${tail}` : ""}`;
};

export const go = (hash: string) => {
  location.hash = hash;
};
