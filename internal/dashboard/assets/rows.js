// Rows that are kept from look to look: only what changed is touched, so that
// a selection, a focus or a screen reader isn't disturbed once a second.

import { amount } from "./words.js";

// set changes a node's text where it differs.
export function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// element makes an element with a class and children.
export function element(tag, className = "", ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

// fillRows makes parent's children match items, by their keys, in their order.
export function fillRows(parent, items, tag, fill) {
  const old = new Map();
  for (const child of parent.children) old.set(child.rowKey, child);
  let at = parent.firstElementChild;
  for (const item of items) {
    let row = old.get(item.key);
    if (row) {
      old.delete(item.key);
    } else {
      row = document.createElement(tag);
      row.rowKey = item.key;
    }
    fill(row, item);
    if (row === at) {
      at = at.nextElementSibling;
    } else {
      parent.insertBefore(row, at);
    }
  }
  for (const gone of old.values()) gone.remove();
}

// cell fills the i-th cell of a table row; cells are filled in order.
export function cell(tr, i, c) {
  let td = tr.children[i];
  if (!td) {
    td = document.createElement(c.header ? "th" : "td");
    if (c.header) td.scope = "row";
    tr.append(td);
  }
  if ("lag" in c) {
    lagCell(td, c);
  } else if ("state" in c) {
    stateCell(td, c);
  } else {
    textCell(td, c);
  }
}

function textCell(td, c) {
  if (!td.firstChild) {
    td.append(element("span", "", element("bdi")));
    if (c.note) td.append(element("small"));
  }
  set(td.firstChild.firstChild, c.text);
  if (c.note) set(td.lastChild, c.note);
  const className = [c.number ? "n" : "", c.zero ? "zero" : "", c.grow ? "grow" : "", c.tone ?? ""].filter(Boolean).join(" ");
  if (td.className !== className) td.className = className;
  if ((c.title ?? "") !== td.title) td.title = c.title ?? "";
}

function stateCell(td, c) {
  if (!td.firstChild) td.append(element("span", "state"), element("bdi", "reason"));
  const [state, reason] = td.children;
  set(state, c.state);
  state.dataset.state = c.state;
  set(reason, c.reason);
  reason.hidden = c.reason === "";
}

function lagCell(td, c) {
  if (!td.firstChild) {
    const bar = element("span", "gauge", element("i"));
    bar.setAttribute("aria-hidden", "true");
    td.append(element("span", "lag", bar, element("span")));
  }
  const [bar, text] = td.firstChild.children;
  bar.classList.toggle("unknown", c.lag === null);
  const width = c.share ? `${Math.max(c.share * 100, 1)}%` : "0";
  if (bar.firstChild.style.width !== width) bar.firstChild.style.width = width;
  set(text, c.lag === null ? "unknown" : amount(c.lag));
  text.className = c.lag ? "" : "zero";
}
