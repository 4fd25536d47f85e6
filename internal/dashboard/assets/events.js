// Follows what happens, as server-sent events, while the page is visible.
import { amount, clock, visible } from "./words.js";
import { element, set } from "./rows.js";

const kept = 200; // rows
const list = document.getElementById("events");
const none = document.getElementById("events-none");
const note = document.getElementById("events-note");

let source = null;
let last = 0;
let missed = 0;
let pending = [];
let frame = 0;

export function followEvents() {
  document.addEventListener("visibilitychange", connect);
  connect();
}

function connect() {
  if (document.hidden) {
    source?.close();
    source = null;
    return;
  }
  if (source) return;
  source = new EventSource("/api/v1/events");
  source.addEventListener("happening", (message) => {
    const h = JSON.parse(message.data);
    if (h.id <= last && !restarted(h)) return; // sent again on a new connection
    last = h.id;
    pending.push(h);
    if (!frame) frame = requestAnimationFrame(draw);
  });
  source.addEventListener("missed", (message) => {
    if (last) missed += JSON.parse(message.data).missed;
  });
  source.addEventListener("error", () => {
    // A refusal isn't tried again by the browser: do so, slowly.
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(connect, 8000);
    }
  });
}

// restarted tells a new process, which counts from 1 again, from a repeat.
let newest = 0;
function restarted(h) {
  return Date.parse(h.time) > newest;
}

function draw() {
  frame = 0;
  const rows = pending.slice(-kept).map(row);
  for (const h of pending) newest = Math.max(newest, Date.parse(h.time));
  pending = [];
  list.prepend(...rows.reverse());
  while (list.children.length > kept) list.lastElementChild.remove();
  none.hidden = true;
  set(note, missed ? `${amount(missed)} not shown: they came too fast` : "");
}

function row(h) {
  const at = element("time", "meta", clock(new Date(h.time)));
  at.dateTime = h.time;
  const head = element("div", "head", element("span", "level", visible(h.kind)), element("b", "", element("bdi", "", visible(h.subject || h.agent))), at);
  const where = [h.subject ? h.agent : "", h.topic ? `${h.topic}/${h.partition} at ${h.offset}` : ""].filter(Boolean).join(", ");
  const text = element("p", "", element("bdi", "", visible(h.text)), where ? ` (${visible(where)})` : "");
  const li = element("li", "", head, text);
  li.dataset.level = h.level;
  return li;
}
