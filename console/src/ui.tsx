// Parts that every page uses.
import { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, Blocker, Holder } from "./api";
import { duration, principal, shown } from "./format";
import { link, say, useClock } from "./state";

export type Tone = "good" | "busy" | "warn" | "bad" | "calm";

/** Status by shape, word and colour. */
export function Pill({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return (
    <span class={`pill ${tone}`}>
      <Mark tone={tone} />
      {children}
    </span>
  );
}

export function Mark({ tone }: { tone: Tone }) {
  const shape = {
    good: <circle cx="5" cy="5" r="4" />,
    busy: <rect x="1.2" y="1.2" width="7.6" height="7.6" rx="1.6" />,
    warn: <path d="M5 .8 9.4 9H.6z" />,
    bad: <path d="M5 .4 9.6 5 5 9.6.4 5z" />,
    calm: <circle cx="5" cy="5" r="3.2" fill="none" stroke="currentColor" stroke-width="1.6" />,
  }[tone];
  return (
    <svg class={`mark ${tone}`} viewBox="0 0 10 10" width="10" height="10" aria-hidden="true">
      {shape}
    </svg>
  );
}

export function PathText({ path, most }: { path: string; most?: number }) {
  return <bdi class="path">{shown(path, most)}</bdi>;
}

export function PathLink({ path, most }: { path: string; most?: number }) {
  return (
    <a class="path" href={link("lock", path)}>
      <bdi>{shown(path, most)}</bdi>
    </a>
  );
}

export function OwnerLink({ owner, holder }: { owner: string; holder?: Holder | null }) {
  const hidden = owner === "(no access)";
  const name = holder?.name && holder.name !== owner ? holder.name : "";
  return (
    <span class="owner">
      {hidden ? (
        <span class="dim">an owner you may not see</span>
      ) : (
        <a href={link("owner", owner)}>
          <bdi>{shown(name || owner, 48)}</bdi>
        </a>
      )}
      {name && !hidden ? (
        <span class="dim">
          {" "}
          <bdi>{shown(owner, 24)}</bdi>
        </span>
      ) : null}
      {holder?.host ? (
        <span class="dim">
          {" "}
          <bdi>{shown(holder.host, 24)}</bdi>
          {holder.pid ? `:${holder.pid}` : ""}
        </span>
      ) : null}
    </span>
  );
}

export function Lease({ left, at, held }: { left: number; at: number; held: number }) {
  const now = useClock(500);
  const rest = Math.max(0, left - (now - at));
  const whole = useRef(0);
  whole.current = Math.max(whole.current, left);
  const share = whole.current ? Math.min(1, rest / whole.current) : 0;
  const tone = share < 0.2 ? "bad" : share < 0.4 ? "warn" : "good";
  return (
    <span class="lease" title={`held for ${duration(held + (now - at))}`}>
      <svg class={`bar ${tone}`} viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
        <rect class="rail" width="100" height="6" />
        <rect class="fill" width={share * 100} height="6" />
      </svg>
      <span class="number">{rest > 0 ? duration(rest) : "ending"}</span>
    </span>
  );
}

export function Since({ ms, at }: { ms: number; at: number }) {
  const now = useClock(1000);
  return <span class="number">{duration(ms + (now - at))}</span>;
}

export function Page({
  title,
  children,
  actions,
  sub,
}: {
  title: ComponentChildren;
  children: ComponentChildren;
  actions?: ComponentChildren;
  sub?: ComponentChildren;
}) {
  return (
    <main id="main" tabIndex={-1}>
      <header class="head">
        <div>
          <h1>{title}</h1>
          {sub ? <p class="sub">{sub}</p> : null}
        </div>
        {actions ? <div class="actions">{actions}</div> : null}
      </header>
      {children}
    </main>
  );
}

export function Card({
  title,
  children,
  note,
  wide,
}: {
  title: string;
  children: ComponentChildren;
  note?: ComponentChildren;
  wide?: boolean;
}) {
  return (
    <section class={`card${wide ? " wide" : ""}`} aria-label={title}>
      <header>
        <h2>{title}</h2>
        {note ? <span class="note">{note}</span> : null}
      </header>
      {children}
    </section>
  );
}

export function Problem({ error }: { error: ApiError | null }) {
  if (!error || error.status === 401 || error.status === 503) return null;
  return (
    <p class="problem" role="alert">
      <Mark tone="bad" /> {shown(error.message, 400)}
    </p>
  );
}

export function Missing({ groups }: { groups: number | undefined }) {
  if (!groups) return null;
  return (
    <p class="problem" role="status">
      <Mark tone="warn" /> {groups} groups have no leader now. What they contain is not shown.
    </p>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Command({ text }: { text: string }) {
  return (
    <div class="command">
      <code>
        <bdi>{text}</bdi>
      </code>
      <button
        type="button"
        class="quiet"
        onClick={() => {
          navigator.clipboard?.writeText(text).then(
            () => say("Copied"),
            () => say("The browser did not allow to copy", true),
          );
        }}
      >
        Copy
      </button>
    </div>
  );
}

export function FirstLock() {
  return (
    <Empty title="No locks yet">
      <p>Run these in a terminal. The first lock appears here at once.</p>
      <Command text="tenure run demo:/first -- sleep 60" />
      <Command text="tenure why demo:/first" />
      <Command text="tenure run --wait 30s demo:/first -- echo my turn" />
    </Empty>
  );
}

/** A modal dialog: the browser keeps the focus inside and closes it with Escape. */
export function Dialog({
  title,
  onClose,
  children,
}: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    dialog.current?.showModal();
    return () => before?.focus();
  }, []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

export function HolderFacts({ hold, at }: { hold: Blocker; at: number }) {
  const by = principal(hold.owner);
  const facts: [string, ComponentChildren][] = [
    ["Owner", <OwnerLink owner={hold.owner} />],
    ["Host", hold.holder?.host ? <bdi>{shown(hold.holder.host, 80)}</bdi> : "unknown"],
    ["Process", hold.holder?.pid ? <span class="number">{hold.holder.pid}</span> : "unknown"],
    ["Purpose", hold.holder?.purpose ? <bdi>{shown(hold.holder.purpose, 200)}</bdi> : "not given"],
    ["Principal", by ? shown(by, 60) : "anonymous"],
    ["Fence", hold.fence ? <span class="number">{hold.fence}</span> : "none"],
    ["Held for", <Since ms={hold.heldMs} at={at} />],
  ];
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function useDebounced<T>(value: T, ms: number): T {
  const [late, set] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => set(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return late;
}

/** A small chart: a line over an area, with its newest value as text beside it. */
export function Spark({ values, label, unit }: { values: number[]; label: string; unit: string }) {
  const most = Math.max(1e-9, ...values);
  const w = 240;
  const h = 48;
  const step = w / 59;
  const y = (v: number) => h - 3 - (v / most) * (h - 8);
  const from = 60 - values.length;
  const points = values.map((v, i) => `${((from + i) * step).toFixed(1)},${y(v).toFixed(1)}`);
  const last = values.at(-1);
  const text = (v: number) => (v === 0 ? "0" : v >= 100 ? Math.round(v).toLocaleString("en-US") : v.toFixed(v < 10 ? 2 : 1));
  return (
    <figure class="spark">
      <figcaption>
        <span class="label">{label}</span>
        <span class="value number">
          {last === undefined ? "–" : text(last)} <small>{unit}</small>
        </span>
      </figcaption>
      <svg viewBox={`0 0 ${w} ${h}`} preserveAspectRatio="none" aria-hidden="true">
        {points.length > 1 ? (
          <>
            <polygon class="area" points={`${(from * step).toFixed(1)},${h} ${points.join(" ")} ${w},${h}`} />
            <polyline class="line" points={points.join(" ")} />
          </>
        ) : null}
        <line class="base" x1="0" x2={w} y1={h - 0.5} y2={h - 0.5} />
      </svg>
    </figure>
  );
}
