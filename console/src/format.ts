// Text for people: escaped, short, with units.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Shows text of others: characters without a glyph and those that change the direction as escapes. */
export function shown(text: string, most = 160): string {
  const escaped = text.replace(HIDDEN, (c) => `\\u{${c.codePointAt(0)!.toString(16)}}`);
  const letters = Array.from(escaped);
  if (letters.length <= most) return escaped;
  const half = Math.floor((most - 1) / 2);
  return `${letters.slice(0, half).join("")}…${letters.slice(-half).join("")}`;
}

export function duration(ms: number): string {
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min ${Math.floor(s % 60)} s`;
  const h = Math.floor(m / 60);
  if (h < 48) return `${h} h ${m % 60} min`;
  return `${Math.floor(h / 24)} d ${h % 24} h`;
}

const two = (n: number) => String(n).padStart(2, "0");

export function clock(ms: number): string {
  const d = new Date(ms);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

export function date(ms: number): string {
  const d = new Date(ms);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${clock(ms)}`;
}

export const count = (n: number) => n.toLocaleString("en-US");

export const plural = (n: number, one: string, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** Quotes a word for a POSIX shell. */
export function quoted(text: string): string {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text)) return text;
  if (HIDDEN.test(text)) {
    HIDDEN.lastIndex = 0;
    const escaped = text
      .replace(/[\\']/g, "\\$&")
      .replace(HIDDEN, (c) =>
        Array.from(new TextEncoder().encode(c), (b) => `\\x${b.toString(16).padStart(2, "0")}`).join(""),
      );
    return `$'${escaped}'`;
  }
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** The principal in an owner id, if it has one. */
export function principal(owner: string): string {
  const at = owner.lastIndexOf("@");
  return at > 0 && owner.slice(at + 1).includes(":") ? owner.slice(at + 1) : "";
}
