// Search in the pages. The words stand in the address, so that a search can be
// kept and shared.
import { amount, duration, visible } from "./words.js";
import { element, set } from "./rows.js";

const form = document.getElementById("search");
const box = document.getElementById("q");
const note = document.getElementById("search-note");
const hits = document.getElementById("hits");
let asking = null;

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const q = box.value.trim();
  history.replaceState(null, "", q ? `/?q=${encodeURIComponent(q)}` : "/");
  search(q);
});
box.addEventListener("search", () => { if (!box.value) clear(); }); // the cross in the box
window.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && document.activeElement === document.body) {
    event.preventDefault();
    box.focus();
  }
});

function clear() {
  asking?.abort();
  set(note, "");
  hits.replaceChildren();
  history.replaceState(null, "", "/");
}

async function search(q) {
  if (!q) return clear();
  asking?.abort();
  const mine = asking = new AbortController();
  set(note, "Searching");
  try {
    const answer = await fetch(`/api/v1/search?q=${encodeURIComponent(q)}&limit=20`, { signal: mine.signal });
    const body = await answer.json();
    if (!answer.ok) throw new Error([body.detail, body.next].filter(Boolean).join(". "));
    show(q, body);
  } catch (error) {
    if (mine.signal.aborted) return;
    hits.replaceChildren();
    set(note, error instanceof TypeError ? "swarmlog doesn't answer. Try again once the page is connected." : visible(error.message));
  }
}

function show(q, body) {
  const n = body.hits.length;
  const took = `in ${duration(body.took_seconds)}`;
  set(note, n ? `${amount(n)} ${n === 1 ? "page" : "pages"} ${took}, best first` : `No page matches. Try fewer or other words (searched ${took}).`);
  const words = q.toLocaleLowerCase().split(/[^\p{L}\p{N}\p{M}]+/u).filter((w) => w.length > 1);
  hits.replaceChildren(...body.hits.map((h) => {
    const where = element("div", "where", element("bdi", "", visible(h.document)), element("small", "", `page ${amount(h.page)}, score ${h.score.toFixed(3)}`));
    const excerpt = element("p", "", ...marked(visible(h.excerpt), words));
    excerpt.dir = "auto";
    return element("li", "", where, excerpt);
  }));
}

// marked cuts a text into pieces, those that begin like a word that was searched for in a mark.
function marked(text, words) {
  if (!words.length) return [text];
  return text.split(/([\p{L}\p{N}\p{M}]+)/u).filter(Boolean).map((piece) => {
    const low = piece.toLocaleLowerCase();
    return words.some((w) => low.startsWith(w)) ? element("mark", "", piece) : piece;
  });
}

const asked = new URLSearchParams(location.search).get("q");
if (asked) {
  box.value = asked;
  search(asked.trim());
}
