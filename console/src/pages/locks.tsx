// The tree of all locks. Only the rows on screen exist, and only the pages behind them are asked for.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, Child, Children, MODES, call } from "../api";
import { count, shown } from "../format";
import { connection, failed, go, link, useRoute } from "../state";
import { FirstLock, Lease, Mark, Missing, OwnerLink, Page, Problem } from "../ui";

const PAGE = 128;
const ROW = 34;
const EVERY = 1000;

type Loaded = { after: string; children: Child[]; next: string; done: boolean; at: number };
type Branch = { pages: Loaded[]; loading: boolean };
type Row =
  | { kind: "child"; child: Child; depth: number; key: string; open: boolean; parent: string; page: number; at: number }
  | { kind: "more"; depth: number; key: string; parent: string };

type Filter = "all" | "held" | "waiting" | "expiring";

export function Locks() {
  const route = useRoute();
  const root = route.query.get("prefix") ?? "";
  const [branches, setBranches] = useState<Map<string, Branch>>(new Map());
  const [open, setOpen] = useState<Set<string>>(new Set());
  const [filter, setFilter] = useState<Filter>("all");
  const [holder, setHolder] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [missing, setMissing] = useState(0);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [cursor, setCursor] = useState(0);
  const scroller = useRef<HTMLDivElement>(null);
  const live = useRef({ branches, open, root });
  live.current = { branches, open, root };

  const load = async (prefix: string, after: string, index: number) => {
    try {
      const found = await call<Children>("listChildren", { prefix, after, page: PAGE });
      connection.set("connected");
      setError(null);
      setMissing(found.missingGroups);
      const page: Loaded = { after, children: found.children, next: found.next, done: found.done, at: performance.now() };
      setBranches((old) => {
        const now = new Map(old);
        const branch = now.get(prefix) ?? { pages: [], loading: false };
        const pages = branch.pages.slice(0, index);
        pages[index] = page;
        // Later pages fit only if this one still ends where they begin.
        const following = branch.pages.slice(index + 1);
        if (following[0] && !page.done && following[0].after === page.next) pages.push(...following);
        now.set(prefix, { pages, loading: false });
        return now;
      });
    } catch (problem) {
      failed(problem);
      if (problem instanceof ApiError && problem.status !== 503) setError(problem);
      setBranches((old) => {
        const branch = old.get(prefix);
        return branch?.loading ? new Map(old).set(prefix, { ...branch, loading: false }) : old;
      });
    }
  };

  useEffect(() => {
    setOpen(new Set());
    setCursor(0);
    scroller.current?.scrollTo(0, 0);
    if (!live.current.branches.has(root)) load(root, "", 0);
  }, [root]);

  const rows = useMemo(() => {
    const all: Row[] = [];
    const keep = (child: Child) =>
      (filter === "all" ||
        (filter === "held" && child.holds > 0) ||
        (filter === "waiting" && child.waiters > 0) ||
        (filter === "expiring" && (child.branch || child.holders.some((one) => one.leaseLeftMs < 10_000)))) &&
      (!holder ||
        child.branch ||
        child.holders.some((one) =>
          `${one.owner} ${one.holder?.name ?? ""} ${one.holder?.host ?? ""}`.toLowerCase().includes(holder.toLowerCase()),
        ));
    const add = (prefix: string, depth: number) => {
      const branch = branches.get(prefix);
      if (!branch) return;
      branch.pages.forEach((page, index) => {
        for (const child of page.children) {
          if (!keep(child)) continue;
          const isOpen = open.has(child.path);
          all.push({ kind: "child", child, depth, key: child.path, open: isOpen, parent: prefix, page: index, at: page.at });
          if (isOpen) add(child.path, depth + 1);
        }
      });
      const last = branch.pages.at(-1);
      if (last && !last.done) all.push({ kind: "more", depth, key: `${prefix}\u0000more`, parent: prefix });
    };
    add(root, 0);
    return all;
  }, [branches, open, root, filter, holder]);

  const first = Math.max(0, Math.floor(top / ROW) - 6);
  const last = Math.min(rows.length, Math.ceil((top + height) / ROW) + 6);
  const visible = rows.slice(first, last);
  const seen = useRef(visible);
  seen.current = visible;

  // Refreshes what is on screen: the pages of the visible rows, one after the other.
  useEffect(() => {
    let alive = true;
    let timer = 0;
    const run = async () => {
      if (!document.hidden) {
        const wanted = new Map<string, [string, number]>();
        for (const row of seen.current) {
          if (row.kind === "child") wanted.set(`${row.parent}\u0000${row.page}`, [row.parent, row.page]);
        }
        if (!wanted.size) wanted.set("", [live.current.root, 0]);
        for (const [prefix, index] of wanted.values()) {
          const page = live.current.branches.get(prefix)?.pages[index];
          if (alive) await load(prefix, page?.after ?? "", page ? index : 0);
        }
      }
      if (alive) timer = window.setTimeout(run, EVERY);
    };
    timer = window.setTimeout(run, EVERY);
    return () => {
      alive = false;
      clearTimeout(timer);
    };
  }, []);

  // The end of a list on screen loads its next page.
  useEffect(() => {
    for (const row of visible) {
      if (row.kind !== "more") continue;
      const branch = branches.get(row.parent);
      const page = branch?.pages.at(-1);
      if (!branch || branch.loading || !page) continue;
      branch.loading = true;
      load(row.parent, page.next, branch.pages.length);
    }
  }, [visible, branches]);

  useEffect(() => {
    const box = scroller.current;
    if (!box) return;
    const observer = new ResizeObserver(() => setHeight(box.clientHeight));
    observer.observe(box);
    return () => observer.disconnect();
  }, []);

  const toggle = (child: Child) => {
    const now = new Set(open);
    if (!now.delete(child.path)) {
      now.add(child.path);
      if (!branches.has(child.path)) load(child.path, "", 0);
    }
    setOpen(now);
  };

  const enter = (child: Child) => {
    if (child.path.includes(":")) go(link("lock", child.path));
    else toggle(child);
  };

  const onKey = (event: KeyboardEvent) => {
    const row = rows[cursor];
    const move = (to: number) => {
      const next = Math.max(0, Math.min(rows.length - 1, to));
      setCursor(next);
      const box = scroller.current!;
      if (next * ROW < box.scrollTop) box.scrollTop = next * ROW;
      if ((next + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (next + 1) * ROW - box.clientHeight;
      event.preventDefault();
    };
    if (event.key === "ArrowDown") move(cursor + 1);
    else if (event.key === "ArrowUp") move(cursor - 1);
    else if (event.key === "PageDown") move(cursor + Math.floor(height / ROW));
    else if (event.key === "PageUp") move(cursor - Math.floor(height / ROW));
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(rows.length - 1);
    else if (row?.kind === "child" && event.key === "ArrowRight" && row.child.branch && !row.open) toggle(row.child);
    else if (row?.kind === "child" && event.key === "ArrowLeft" && row.open) toggle(row.child);
    else if (row?.kind === "child" && event.key === "Enter") enter(row.child);
  };

  const rootBranch = branches.get(root);
  const empty = rootBranch && !rows.length && !rootBranch.pages.some((page) => page.children.length);
  const filters: [Filter, string][] = [
    ["all", "All"],
    ["held", "Held"],
    ["waiting", "Waiting"],
    ["expiring", "Expiring soon"],
  ];
  return (
    <Page title="Locks" sub={root ? <Crumbs path={root} /> : "Every handler, namespace and path that is held or waited for"}>
      <Problem error={error} />
      <Missing groups={missing} />
      <div class="toolbar">
        <div class="segments" role="group" aria-label="Filter">
          {filters.map(([name, label]) => (
            <button key={name} type="button" aria-pressed={filter === name} onClick={() => setFilter(name)}>
              {label}
            </button>
          ))}
        </div>
        <input
          class="filter"
          placeholder="Holder contains…"
          aria-label="Holder contains"
          value={holder}
          onInput={(event) => setHolder(event.currentTarget.value)}
        />
      </div>
      {empty && !root ? (
        <FirstLock />
      ) : (
        <div class="tree-box">
          <div class="tree-head" aria-hidden="true">
            <span class="c-name">Path</span>
            <span class="c-count">Held</span>
            <span class="c-count">Waiting</span>
            <span class="c-holder">Holder</span>
            <span class="c-lease">Lease left</span>
          </div>
          <div
            class="tree"
            role="tree"
            aria-label="Locks"
            tabIndex={0}
            ref={scroller}
            aria-activedescendant={rows[cursor] && cursor >= first && cursor < last ? `row-${cursor}` : undefined}
            onScroll={(event) => {
              const to = event.currentTarget.scrollTop;
              requestAnimationFrame(() => setTop(to));
            }}
            onKeyDown={onKey}
          >
            <div class="tree-space" role="presentation" style={{ height: `${rows.length * ROW}px` }}>
              {visible.map((row, i) => {
                const at = first + i;
                const style = { transform: `translateY(${at * ROW}px)` };
                if (row.kind === "more") {
                  return (
                    <div key={row.key} class="row dim" style={style} role="treeitem" aria-level={row.depth + 1} aria-selected={false} id={`row-${at}`}>
                      <span class="c-name">
                        <Indent depth={row.depth} />
                        Loading more…
                      </span>
                    </div>
                  );
                }
                const { child } = row;
                const hold = child.holders[0];
                const tone = child.waiters ? "warn" : hold ? "busy" : "calm";
                return (
                  <div
                    key={row.key}
                    id={`row-${at}`}
                    class={`row${at === cursor ? " current" : ""}`}
                    style={style}
                    role="treeitem"
                    aria-level={row.depth + 1}
                    aria-selected={at === cursor}
                    aria-expanded={child.branch ? row.open : undefined}
                    onClick={() => {
                      setCursor(at);
                      enter(child);
                    }}
                  >
                    <span class="c-name">
                      <Indent depth={row.depth} />
                      {child.branch ? (
                        <span
                          class={`caret${row.open ? " open" : ""}`}
                          title={row.open ? "Close" : "Open"}
                          onClick={(event) => {
                            event.stopPropagation();
                            setCursor(at);
                            toggle(child);
                          }}
                        >
                          <svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">
                            <path d="M3 1.5 7 5 3 8.5" fill="none" stroke="currentColor" stroke-width="1.6" />
                          </svg>
                        </span>
                      ) : (
                        <span class="caret none" />
                      )}
                      <Mark tone={tone} />
                      <bdi class="name">{shown(child.name === "" ? "/" : child.name, 120)}</bdi>
                      {child.path.includes(":") ? null : <span class="dim">:</span>}
                    </span>
                    <span class="c-count number">{child.partial ? "–" : `${count(child.holds)}${child.minimum ? "+" : ""}`}</span>
                    <span class={`c-count number${child.waiters ? " strong" : " dim"}`}>
                      {child.partial ? "–" : `${count(child.waiters)}${child.minimum && child.waiters ? "+" : ""}`}
                    </span>
                    <span class="c-holder">
                      {hold ? (
                        <>
                          <OwnerLink owner={hold.owner} holder={hold.holder} />
                          {child.holders.length > 1 ? <span class="dim"> +{child.holders.length - 1}</span> : null}
                          {hold.mode ? <span class="tag">{MODES[hold.mode]}</span> : null}
                        </>
                      ) : null}
                    </span>
                    <span class="c-lease">{hold ? <Lease left={hold.leaseLeftMs} at={row.at} held={hold.heldMs} /> : null}</span>
                  </div>
                );
              })}
            </div>
          </div>
          {!rows.length && rootBranch ? <p class="dim pad">Nothing here fits the filter.</p> : null}
        </div>
      )}
      <p class="hint dim">Arrow keys move, → opens, Enter shows a lock.</p>
    </Page>
  );
}

function Indent({ depth }: { depth: number }) {
  return <span class="indent" style={{ width: `${Math.min(depth, 12) * 18}px` }} />;
}

export function Crumbs({ path }: { path: string }) {
  const colon = path.indexOf(":");
  const parts: [string, string][] = [["all", ""]];
  if (colon < 0) parts.push([path, path]);
  else {
    const handler = path.slice(0, colon);
    parts.push([handler, handler]);
    let at = `${handler}:`;
    for (const segment of path.slice(colon + 2).split("/")) {
      if (!segment) continue;
      at = `${at}/${segment}`;
      parts.push([segment, at]);
    }
  }
  return (
    <nav class="crumbs" aria-label="Path">
      {parts.map(([name, prefix], i) => (
        <span key={prefix}>
          {i ? <span class="dim"> / </span> : null}
          <a href={link("locks", "", prefix ? { prefix } : {})}>
            <bdi>{shown(name, 32)}</bdi>
          </a>
        </span>
      ))}
    </nav>
  );
}
