"use strict";
// The page shows the state that the server sends, and sends what is pressed. Texts that agents wrote only ever become text nodes.

const $ = (id) => document.getElementById(id);

function make(tag, className, ...content) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...content);
  return node;
}

// keyed keeps one element an item: an element is made anew only when its item has changed, so that focus and scrolling stay.
function keyed(list, items, key, build) {
  const old = new Map([...list.children].map((node) => [node.dataset.key, node]));
  let at = null;
  for (const item of items) {
    const id = String(key(item));
    const text = JSON.stringify(item);
    let node = old.get(id);
    old.delete(id);
    if (!node || node.dataset.item !== text) {
      const fresh = build(item, node);
      fresh.dataset.key = id;
      fresh.dataset.item = text;
      if (node) {
        const label = node.contains(document.activeElement) ? document.activeElement.textContent : null;
        const openDetails = node.querySelector("details")?.open;
        node.replaceWith(fresh);
        if (openDetails && fresh.querySelector("details")) fresh.querySelector("details").open = true;
        if (label !== null) ([...fresh.querySelectorAll("button")].find((b) => b.textContent === label) ?? fresh.querySelector("button"))?.focus();
      }
      node = fresh;
    }
    const next = at ? at.nextSibling : list.firstChild;
    if (next !== node) list.insertBefore(node, next);
    at = node;
  }
  for (const node of old.values()) node.remove();
}

async function send(order, quiet) {
  const said = $("said");
  try {
    const answer = await fetch("do", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(order) });
    const error = answer.ok ? (await answer.json()).error : await answer.text();
    said.textContent = error || (quiet ? "" : "Done.");
    said.className = error ? "bad" : "";
  } catch {
    said.textContent = "The demo has ended: start it again with make demo.";
    said.className = "bad";
  }
}

// rich draws a text with Telegram's entities, whose offsets count UTF-16 units as JavaScript's strings do.
const tags = {
  bold: "strong", italic: "em", underline: "u", strikethrough: "s", code: "code", pre: "pre", blockquote: "blockquote",
  expandable_blockquote: "blockquote",
};
function rich(text, entities) {
  const sorted = [...entities].sort((a, b) => a.offset - b.offset || b.length - a.length);
  const build = (start, end, inner) => {
    const out = document.createDocumentFragment();
    let at = start;
    for (let i = 0; i < inner.length; ) {
      const e = inner[i];
      const stop = Math.min(e.offset + e.length, end);
      let j = i + 1;
      while (j < inner.length && inner[j].offset < stop) j++;
      const block = e.type === "pre" || e.type.endsWith("blockquote"); // stands on lines of its own, without the breaks around it
      out.append(text.slice(at, block && text[e.offset - 1] === "\n" ? Math.max(at, e.offset - 1) : e.offset));
      const node = make(tags[e.type] ?? "span", e.type === "spoiler" ? "spoiler" : "");
      if (e.type === "spoiler") node.tabIndex = 0;
      node.append(build(e.offset, stop, inner.slice(i + 1, j)));
      out.append(node);
      at = block && stop < end && text[stop] === "\n" ? stop + 1 : stop;
      i = j;
    }
    out.append(text.slice(at, end));
    return out;
  };
  return make("div", "text", build(0, text.length, sorted));
}

const phones = new Map();
function phone(owner) {
  if (phones.has(owner)) return phones.get(owner);
  const chat = make("div", "chat");
  chat.setAttribute("role", "log");
  chat.setAttribute("aria-label", `The chat on ${owner}'s phone`);
  chat.tabIndex = 0;
  const toast = make("div", "toast");
  toast.setAttribute("role", "status");
  toast.hidden = true;
  const input = make("input");
  input.setAttribute("aria-label", `${owner} writes`);
  input.placeholder = "Message, or /pending";
  input.maxLength = 1000;
  const to = make("span");
  const cancel = make("button", "", "✕");
  cancel.type = "button";
  cancel.setAttribute("aria-label", "Do not reply");
  const toLine = make("div", "to", to, cancel);
  toLine.hidden = true;
  const composer = make("form", "composer", toLine, input, make("button", "", "Send"));
  const p = { chat, toast, replyTo: 0, toastID: "" };
  const answer = (message) => {
    p.replyTo = message ? message.id : 0;
    to.textContent = message ? `Reply to: ${message.text.slice(0, 40)}…` : "";
    toLine.hidden = !message;
    if (message) input.focus();
  };
  p.answer = answer;
  cancel.addEventListener("click", () => answer(null));
  composer.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    send({ do: "write", person: owner, text: input.value, message: p.replyTo }, true);
    input.value = "";
    answer(null);
  });
  const title = make("h3", "", `${owner} `, make("small", "", "· Approvals (group)"));
  const frame = make("article", "phone", title, chat, toast, composer);
  frame.setAttribute("aria-label", `${owner}'s phone`);
  $("phone-list").append(frame);
  phones.set(owner, p);
  return p;
}

function message(owner, m, byID, waiting) {
  const bubble = make("div", "bubble");
  if (m.from !== owner) bubble.append(make("div", "who", m.from));
  if (m.reply_to) bubble.append(make("div", "reply", byID.get(m.reply_to)?.text.split("\n")[0] ?? "a message that is gone"));
  if (m.document) {
    const open = make("button", "", "Open");
    open.setAttribute("aria-label", `Open ${m.document.name}`);
    open.addEventListener("click", () => showFile(m));
    bubble.append(make("div", "document", make("span", "", `📄 ${m.document.name} · ${m.document.size.toLocaleString("en")} bytes`), open));
  }
  bubble.append(rich(m.text, m.entities));
  const meta = make("div", "meta");
  if (m.bot) {
    const reply = make("button", "", "Reply");
    reply.addEventListener("click", () => phone(owner).answer(m));
    meta.append(reply);
  }
  meta.append(make("span", "", (m.edited ? "edited " : "") + m.time));
  bubble.append(meta);
  const node = make("div", m.from === owner ? "message own" : "message", bubble);
  if (m.buttons.length) {
    const keys = make("div", "keys");
    for (const row of m.buttons) {
      const line = make("div");
      for (const label of row) {
        const key = make("button", "", waiting ? `${label} …` : label);
        key.addEventListener("click", () => send({ do: "tap", person: owner, message: m.id, text: label }, true));
        line.append(key);
      }
      keys.append(line);
    }
    node.append(keys);
  }
  return node;
}

async function showFile(m) {
  $("file-name").textContent = m.document.name;
  const answer = await fetch(`document/${m.id}`);
  $("file-text").textContent = answer.ok ? await answer.text() : "This file is gone.";
  $("file").showModal();
}

function showPhones(state) {
  const byID = new Map(state.messages.map((m) => [m.id, m]));
  for (const s of state.phones) {
    const p = phone(s.owner);
    const atEnd = p.chat.scrollHeight - p.chat.scrollTop - p.chat.clientHeight < 40;
    const before = p.chat.childElementCount;
    keyed(p.chat, state.messages.map((m) => ({ m, waiting: s.waiting.includes(m.id) })), (i) => i.m.id, (i) => message(s.owner, i.m, byID, i.waiting));
    if (atEnd || p.chat.childElementCount > before) p.chat.scrollTop = p.chat.scrollHeight;
    if (s.toast && s.toast.id !== p.toastID) {
      p.toastID = s.toast.id;
      p.toast.textContent = s.toast.text;
      p.toast.hidden = false;
      clearTimeout(p.timer);
      p.timer = setTimeout(() => { p.toast.hidden = true; }, s.toast.alert ? 9000 : 5000);
    }
  }
}

function program(p, old) {
  const end = make("span", p.running ? "end" : p.code === 0 ? "end good" : "end bad",
    p.running ? `process ${p.pid}` : `exit ${p.code}: ${p.meaning}`);
  const pre = make("pre", "", make("span", "cmd", `$ ${p.command}\n`), p.lines.join("\n"));
  if (p.running) pre.append(make("span", "waiting", ""));
  pre.tabIndex = 0;
  pre.setAttribute("aria-label", `Output of ${p.title}`);
  const node = make("article", "program", make("h3", "", make("span", "", p.title), end), pre);
  requestAnimationFrame(() => { pre.scrollTop = old ? pre.scrollHeight : 0; });
  return node;
}

const short = (hash) => (hash ? `${hash.slice(0, 8)}…${hash.slice(-4)}` : "none: the first");
const checked = new Map(); // stored line -> whether its hash is right

function record(item) {
  const r = item.record;
  const head = make("summary", "",
    make("span", "event", `${r.seq} · ${r.event}`), ` ${r.action_key ?? ""} by ${r.actor}`,
    make("span", "hash", `prev ${short(r.prev)} → hash ${short(r.hash)} ${item.ok === undefined ? "" : item.ok ? "✓" : "✗ BROKEN"}`));
  const details = make("details", "", head, make("pre", "", JSON.stringify(r, null, 2)));
  return make("li", `record ${item.ok === undefined ? "" : item.ok ? "ok" : "broken"}`, details);
}

// The hash of a record is SHA-256 of its line without the member "hash". A line is canonical, so the first occurrence is that member.
async function hashIsRight(line, hash) {
  const bytes = new TextEncoder().encode(line.replace(`"hash":"${hash}",`, ""));
  const sum = await crypto.subtle.digest("SHA-256", bytes);
  return [...new Uint8Array(sum)].map((b) => b.toString(16).padStart(2, "0")).join("") === hash;
}

let shown = { lines: [] };
function showLog() {
  let prev = null;
  const items = shown.lines.map((line) => {
    const r = JSON.parse(line);
    const right = checked.get(line);
    const item = { record: r, ok: right === undefined ? undefined : right && r.prev === prev };
    prev = r.hash;
    return item;
  });
  keyed($("log-list"), [...items].reverse(), (i) => i.record.seq, record);
  const good = items.filter((i) => i.ok).length;
  const broken = items.filter((i) => i.ok === false).length;
  if (items.length) {
    $("verified").textContent = `approvald log verify: ${shown.verified.status || "…"}, ${shown.verified.records} records. ` +
      `This page computed ${good} of ${items.length} hashes again${broken ? `; ${broken} DO NOT HOLD` : " and followed the chain"}.`;
  }
  const fine = shown.verified.status === "clean" && !broken;
  chip("chain", items.length ? `log: ${items.length} records, ${shown.verified.status || "…"}` : "log: empty", items.length ? fine : undefined);
}

async function checkLines() {
  let fresh = false;
  for (const line of shown.lines) {
    if (checked.has(line)) continue;
    checked.set(line, await hashIsRight(line, JSON.parse(line).hash));
    fresh = true;
  }
  if (fresh) showLog();
}

function chip(id, text, good) {
  const node = $(id);
  node.textContent = text;
  node.className = good === undefined ? "chip" : good ? "chip good" : "chip bad";
}

function show(state) {
  shown = state;
  showPhones(state);
  keyed($("program-list"), state.programs, (p) => p.id, program);
  $("no-programs").hidden = state.programs.length > 0;
  showLog();
  checkLines();
  const d = state.daemon;
  chip("daemon", d.running ? `daemon: process ${d.pid}, ${d.mode}` : "daemon: not running", d.running);
  const muted = Math.ceil(state.muted_for);
  chip("network", !state.online ? "network: cut" : muted ? `Telegram answers 429 for ${muted} s` : "network: fine", state.online && !muted);
  const next = d.mode === "poll" ? "webhook" : "poll";
  $("mode").dataset.kind = next;
  $("mode").textContent = `switch to ${next === "poll" ? "long polling" : "webhook"}`;
  $("cut").dataset.kind = state.online ? "off" : "on";
  $("cut").textContent = state.online ? "cut the network" : "mend the network";
  for (const b of document.querySelectorAll("[data-do=kill],[data-do=stop],[data-do=second]")) b.disabled = !d.running;
  document.querySelector("[data-do=start]").disabled = d.running;
  document.body.dataset.ready = "yes";
}

$("controls").addEventListener("click", async (event) => {
  const b = event.target.closest("button[data-do]");
  if (!b) return;
  b.setAttribute("aria-busy", "true");
  await send({ do: b.dataset.do, kind: b.dataset.kind ?? "" });
  b.removeAttribute("aria-busy");
});

const events = new EventSource("events");
events.onmessage = (event) => show(JSON.parse(event.data));
events.addEventListener("end", () => events.close());
events.onerror = () => {
  $("said").textContent = "The connection to the demo is gone; if it was ended, start it again with make demo.";
  $("said").className = "bad";
};
