// The live page of a run. It polls the status once a second and follows the
// events while it is visible; hidden, it does nothing. What comes from outside
// is put in as text only: nothing here parses HTML.
import { amount, bytes, clock, duration, elapsed, rate, visible } from "./words.js";
import { cell, element, fillRows, set } from "./rows.js";
import { followEvents } from "./events.js";
import "./search.js";

const period = 1000;          // between two looks, while the page is visible
const patience = 10000;       // for one answer
const slowest = 8000;         // between two tries while nobody answers
const shownPartitions = 60;   // rows; those with the most lag come first
const shownLanes = 24;
const sparkLooks = 60;

const $ = (id) => document.getElementById(id);
let timer = 0;
let asking = null;
let failures = 0;
let lastGood = 0;
const rates = [];

async function look() {
  timer = 0;
  const mine = asking = new AbortController();
  const limit = setTimeout(() => mine.abort(), patience);
  let status = null;
  try {
    const answer = await fetch("/api/v1/status", { signal: mine.signal, headers: { Accept: "application/json" } });
    const body = await answer.json();
    if (!answer.ok) throw new Error([body.detail, body.next].filter(Boolean).join(". "));
    status = body;
    failures = 0;
  } catch (error) {
    if (asking !== mine) return; // given up when the page was hidden
    failures++;
    sayGone(error);
  } finally {
    clearTimeout(limit);
  }
  if (asking !== mine) return;
  asking = null;
  plan();
  if (status) show(status);
}

function plan() {
  if (document.hidden || timer || asking) return;
  timer = setTimeout(look, failures ? Math.min(period * 2 ** failures, slowest) : period);
}

function sayGone(error) {
  const since = lastGood ? ` What you see is from ${clock(new Date(lastGood))}.` : "";
  const reason = error instanceof TypeError || error.name === "AbortError"
    ? "swarmlog doesn't answer. If it was stopped, start it again with the same data folder; it goes on where it stopped."
    : error.message;
  set($("gone"), reason + since);
  $("gone").hidden = false;
  set($("link"), "not connected");
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(timer);
    timer = 0;
    asking?.abort();
    asking = null;
    return;
  }
  failures = 0;
  if (!timer && !asking) look();
});

function show(s) {
  lastGood = Date.now();
  $("gone").hidden = true;
  set($("link"), "live");
  document.title = s.swarm ? `${visible(s.swarm)}: ${s.state}` : "Swarmlog";
  set($("swarm"), visible(s.swarm));
  set($("state"), s.state);
  $("state").dataset.state = s.state;
  set($("since"), `for ${elapsed((Date.parse(s.time) - Date.parse(s.started)) / 1000)}`);
  showProgress(s);
  showFigures(s);
  showWarnings(s.warnings);
  showAgents(s.agents);
  showPartitions(s.agents);
  showLanes(s.agents);
  showDead(s);
  showPlaces(s);
}

const passedOver = (c) => c.refused + c.skipped + c.ignored;
const settledOf = (c) => c.applied + c.duplicate + passedOver(c) + c.dead;

function showProgress(s) {
  const settled = settledOf(s.records);
  const track = $("track");
  track.dataset.state = s.state;
  if (s.remaining === null) {
    track.removeAttribute("aria-valuenow");
    $("fill").style.width = "0";
    set($("progress-text"), `${amount(settled)} records settled; how many are left isn't known yet`);
    return;
  }
  const known = settled + s.remaining;
  const share = known ? settled / known : s.state === "idle" ? 1 : 0;
  // Rounded down, so that 100 % means that nothing is left.
  const percent = Math.floor(share * 1000) / 10;
  track.setAttribute("aria-valuenow", String(percent));
  $("fill").style.width = `${share * 100}%`;
  let text = known ? `${percent < 100 ? percent.toFixed(1) : 100} %, ${amount(settled)} of ${amount(known)} known records settled` : "No record yet";
  if (s.state === "idle") text += s.remaining ? "" : known ? ". Waiting for new files." : ": waiting for files.";
  set($("progress-text"), text);
}

function showFigures(s) {
  set($("f-documents"), amount(s.documents));
  set($("f-pages"), amount(s.pages));
  set($("f-rate"), rate(s.steps_per_second));
  const word = s.state === "idle" ? "done" : s.time_left_seconds === null ? "unknown" : "";
  set($("f-left"), word || duration(s.time_left_seconds));
  $("f-left").className = word && "word";
  set($("f-dead"), amount(s.records.dead));
  $("f-dead").className = s.records.dead ? "bad" : "";
  set($("f-waiting"), amount(s.records.waiting));
  $("f-waiting").className = s.records.waiting ? "warn" : "";
  set($("f-calls"), amount(s.inference.calls));
  set($("f-reused"), `${amount(s.inference.reused)} reused, ${amount(s.inference.in_doubt)} in doubt`);
  set($("model"), visible(s.model));
  spark(s.steps_per_second);
}

// spark draws the rate of the last minute, now at the right.
function spark(value) {
  rates.push(value);
  if (rates.length > sparkLooks + 1) rates.shift();
  const top = Math.max(...rates, 1);
  const points = rates.map((v, i) => `${sparkLooks + 1 - rates.length + i},${(27 - (v / top) * 25).toFixed(1)}`);
  const line = points.length > 1 ? points.join("L") : "";
  const [, area, stroke] = $("spark").children;
  stroke.setAttribute("d", line && `M${line}`);
  area.setAttribute("d", line && `M${sparkLooks + 1 - rates.length},27.5L${line}V27.5Z`);
}

function showWarnings(warnings) {
  $("warnings").hidden = warnings.length === 0;
  fillRows($("warning-list"), warnings.map((w, i) => ({ key: String(i), text: w })), "li", (li, w) => {
    set(li, visible(w.text));
    li.dir = "auto";
  });
}

// emptyOr shows a table, or the sentence that stands for it where it has no rows.
function emptyOr(id, rows) {
  $(`${id}-none`).hidden = rows > 0;
  $(id).closest(".scroll").hidden = rows === 0;
}

const lagOf = (partitions) => partitions.some((p) => p.lag === null) ? null : partitions.reduce((sum, p) => sum + p.lag, 0);

function showAgents(agents) {
  emptyOr("agents", agents.length);
  fillRows($("agents"), agents.map((a) => ({ key: a.name, agent: a })), "tr", (tr, { agent: a }) => {
    const c = a.outcomes;
    cell(tr, 0, { text: visible(a.name), note: visible(a.kind), header: true });
    cell(tr, 1, { state: a.state, reason: visible(a.reason) });
    cell(tr, 2, { text: rate(a.rate), number: true, zero: !a.rate });
    cell(tr, 3, { text: amount(a.in_flight), number: true, zero: !a.in_flight });
    cell(tr, 4, { text: amount(a.queued), number: true, zero: !a.queued });
    cell(tr, 5, { text: bytes(a.weight_bytes), number: true, zero: !a.weight_bytes });
    const lag = lagOf(a.partitions);
    cell(tr, 6, { text: lag === null ? "unknown" : amount(lag), number: true, zero: !lag });
    cell(tr, 7, { text: amount(c.applied), number: true, zero: !c.applied });
    cell(tr, 8, { text: amount(c.duplicate), number: true, zero: !c.duplicate });
    const title = `${amount(c.refused)} refused, ${amount(c.skipped)} skipped, ${amount(c.ignored)} ignored`;
    cell(tr, 9, { text: amount(passedOver(c)), number: true, zero: !passedOver(c), title });
    cell(tr, 10, { text: amount(c.dead), number: true, zero: !c.dead, tone: c.dead ? "bad" : "" });
    cell(tr, 11, { text: amount(c.waiting), number: true, zero: !c.waiting, tone: c.waiting ? "warn" : "" });
  });
}

function showPartitions(agents) {
  let all = agents.flatMap((a) => a.partitions.map((p) => ({ key: `${a.name}\0${p.topic}\0${p.partition}`, agent: a.name, p })));
  const total = all.length;
  if (total > shownPartitions) {
    all = all.sort((a, b) => (b.p.lag ?? Infinity) - (a.p.lag ?? Infinity)).slice(0, shownPartitions);
    set($("partitions-note"), `${shownPartitions} of ${amount(total)}, most lag first`);
  } else {
    set($("partitions-note"), "");
  }
  emptyOr("partitions", total);
  const top = Math.max(1, ...all.map((row) => row.p.lag ?? 0));
  let before = null;
  fillRows($("partitions"), all, "tr", (tr, { agent, p }) => {
    tr.className = agent === before ? "same" : "";
    before = agent;
    cell(tr, 0, { text: visible(agent), header: true });
    cell(tr, 1, { text: `${visible(p.topic)}/${p.partition}` });
    cell(tr, 2, { lag: p.lag, share: (p.lag ?? 0) / top });
    cell(tr, 3, { text: p.lag_seconds === null || !p.lag ? "–" : duration(p.lag_seconds), number: true, zero: !p.lag });
    cell(tr, 4, { text: amount(p.next), number: true, zero: !p.next });
    cell(tr, 5, { text: p.end < 0 ? "unknown" : amount(p.end), number: true, zero: !p.end });
    cell(tr, 6, { text: amount(p.lanes), number: true, zero: !p.lanes });
    cell(tr, 7, { text: amount(p.parked), number: true, zero: !p.parked, tone: p.parked ? "warn" : "" });
    cell(tr, 8, { text: amount(p.outbox), number: true, zero: !p.outbox, title: p.outbox ? `oldest ${duration(p.outbox_seconds)}` : "" });
    cell(tr, 9, { text: p.oldest_step_seconds ? duration(p.oldest_step_seconds) : "–", number: true, zero: !p.oldest_step_seconds });
    cell(tr, 10, { text: amount(p.epoch), number: true, zero: true });
  });
}

function showLanes(agents) {
  const all = agents.flatMap((a) => a.lanes.map((l) => ({ key: `${a.name}\0${l.topic}\0${l.partition}\0${l.subject}`, agent: a.name, l })))
    .sort((a, b) => b.l.running_seconds - a.l.running_seconds);
  // Where steps run whose subjects aren't reported, there's nothing true to say.
  const running = agents.some((a) => a.in_flight > 0);
  $("h-lanes").parentElement.hidden = all.length === 0 && running;
  emptyOr("lanes", all.length);
  set($("lanes-note"), all.length > shownLanes ? `${shownLanes} of ${amount(all.length)}, longest first` : "");
  fillRows($("lanes"), all.slice(0, shownLanes), "tr", (tr, { agent, l }) => {
    cell(tr, 0, { text: visible(agent), header: true });
    cell(tr, 1, { text: visible(l.subject), grow: true });
    cell(tr, 2, { text: l.running_seconds ? duration(l.running_seconds) : "waits to retry", number: true });
    cell(tr, 3, { text: amount(l.attempt), number: true, zero: l.attempt <= 1, tone: l.attempt > 1 ? "warn" : "" });
    cell(tr, 4, { text: amount(l.queued), number: true, zero: !l.queued });
    cell(tr, 5, { text: bytes(l.weight_bytes), number: true, zero: !l.weight_bytes });
    cell(tr, 6, { text: `${visible(l.topic)}/${l.partition}` });
  });
}

function showDead(s) {
  const shown = s.dead_letters;
  $("dead-none").hidden = shown.length > 0 || s.records.dead > 0;
  set($("dead-note"), s.records.dead > shown.length ? `newest ${shown.length} of ${amount(s.records.dead)}` : "");
  const rows = shown.map((d) => ({ key: `${d.agent}\0${d.topic}\0${d.partition}\0${d.offset}`, d }));
  fillRows($("dead"), rows, "li", (li, { d }) => {
    if (!li.firstChild) {
      const head = element("div", "head", element("b", "", element("bdi")), element("time", "meta"));
      li.append(head, element("p"), element("span", "place"));
      li.children[1].dir = "auto";
    }
    const [head, reason, place] = li.children;
    set(head.querySelector("bdi"), visible(d.subject) || "(no subject)");
    set(head.querySelector("time"), clock(new Date(d.time)));
    head.querySelector("time").dateTime = d.time;
    set(reason, visible(d.reason));
    set(place, `${visible(d.agent)}, ${visible(d.topic)}/${d.partition} at ${d.offset}`);
  });
}

function showPlaces(s) {
  const broker = $("p-broker");
  if (!broker.firstChild) broker.append(element("span"), element("span", "bad"));
  set(broker.firstChild, [visible(s.broker.address), s.broker.log_bytes ? `${bytes(s.broker.log_bytes)} of log` : ""].filter(Boolean).join(", "));
  set(broker.lastChild, s.broker.health.map(visible).join("; "));
  set($("p-ledger"), [visible(s.ledger.path), s.ledger.bytes ? bytes(s.ledger.bytes) : ""].filter(Boolean).join(", "));
}

followEvents();
if (!document.hidden) look();
