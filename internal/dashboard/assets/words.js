// How figures, times and names are written.

const whole = new Intl.NumberFormat("en");
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export const amount = (n) => whole.format(n);

export function rate(perSecond) {
  return perSecond > 0 && perSecond < 10 ? tenth.format(perSecond) : whole.format(Math.round(perSecond));
}

export function bytes(n) {
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let unit = -1;
  do { n /= 1024; unit++; } while (n >= 1023.5 && unit < units.length - 1);
  return `${n < 10 ? tenth.format(n) : whole.format(Math.round(n))} ${units[unit]}`;
}

// duration is a span in its largest unit, or its largest two.
export function duration(seconds) {
  if (seconds < 0.9995) return seconds < 0.0005 ? "under 1 ms" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${tenth.format(seconds)} s`;
  return elapsed(seconds);
}

// elapsed is a span in whole seconds.
export function elapsed(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const clock = (date) => (Date.now() - date < 43200000 ? time : day).format(date);

// visible shows characters that would hide or reorder others as what they are:
// control characters and the marks that override the direction of text. A name
// such as "report<U+202E>fdp.exe" then can't pass for a PDF.
const hiding = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/g;
export function visible(text) {
  return String(text ?? "").replace(hiding, (c) => {
    if (c === "\n" || c === "\t") return " ";
    return `\u27e8U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}
