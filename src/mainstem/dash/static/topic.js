import { $, ask, follow, make, rate, setText, stream, tell, whole } from "./common.js";

const topic = decodeURIComponent(location.pathname.split("/").pop());
const base = `/topics/${encodeURIComponent(topic)}`;
const records = $("records").tBodies[0];
let next = ""; // where the page after this one begins
let end = 0;
let tail = null; // what follows the topic, where nobody has paused it
const MOST_ROWS = 200;

document.title = `${topic} · Mainstem`;
setText($("name"), topic);

follow((state) => {
  const node = state.nodes.find((each) => each.id === `topic:${topic}`);
  if (!node) return;
  setText($("summary"), [node.position, rate(node.rate), node.audit && `audit: ${node.audit}`].filter(Boolean).join(" · "));
  if (node.count !== end) {
    end = node.count;
    about();
  }
});

$("place").onsubmit = (event) => {
  event.preventDefault();
  pause();
  show().then(() => $("from").value.trim() || live());
};
$("more").onclick = () => {
  pause();
  show(next);
};
$("newest").onclick = () => {
  $("from").value = "";
  live();
};
$("pause").onclick = () => (tail ? pause() : live());

function pause() {
  tail?.close();
  tail = null;
  setText($("pause"), "Go on");
  said("paused", "soft");
}

// The newest page, then what comes after it; again where the browser has let go of the page meanwhile.
function live() {
  tail?.close();
  setText($("pause"), "Pause");
  said("connecting", "soft");
  $("from").value = "";
  const address = () => `${base}/live${$("partition").value && `?partition=${$("partition").value}`}`;
  tail = stream(address, {
    onOpen: () => show().then(() => said("live", "good")),
    onLost: () => {
      said("no connection, trying again", "bad");
      if (!records.rows.length) show(); // too many pages follow topics, or there is no such topic
    },
    onMessage: (news) => {
      if (news.error) return said(news.error, "bad");
      said(news.skipped ? `live, faster than it can be shown: ${whole(news.skipped)} left out` : "live", "good");
      add(news.records);
    },
  });
}

function said(text, kind) {
  setText($("tail"), text);
  $("tail").className = `state ${kind}`;
}

const place = ({ partition, offset }) => `${partition}:${offset}`;

function add(fresh) {
  const there = new Set([...records.rows].map((each) => each.dataset.place));
  const rows = fresh.filter((each) => !there.has(place(each))).map(row);
  for (const each of rows) each.className = "fresh";
  records.prepend(...rows);
  $("none").hidden = records.rows.length > 0;
  while (records.rows.length > MOST_ROWS) records.rows[records.rows.length - 1].remove();
}

async function about() {
  const found = (await ask(`${base}/about`).catch(tell))?.answer;
  if (!found) return;
  $("partitions").replaceChildren(...found.partitions.map((each) => make("tr", {}, ...[
    each.partition, each.start, each.end, each.end - each.start,
  ].map((number) => make("td", { class: "number" }, whole(number))))));
  $("settings").replaceChildren(...Object.entries(found.settings).map(([name, value]) =>
    make("tr", {}, make("td", {}, name), make("td", {}, make("code", {}, value)))));
  const choice = $("partition");
  for (const { partition } of found.partitions.slice(choice.options.length - 1)) {
    choice.append(make("option", { value: String(partition) }, String(partition)));
  }
}

async function show(place = "") {
  const [partition, from] = [$("partition").value, $("from").value.trim()];
  const asked = new URLSearchParams();
  if (partition) asked.set("partition", partition);
  if (from) asked.set("from", place || [...$("partition").options].slice(1).map((each) => `${each.value}:${from}`).join(","));
  else if (place) asked.set("before", place);
  const page = (await ask(`${base}/records?${asked}`).catch(tell))?.answer;
  if (!page) return;
  tell();
  next = page.next;
  records.replaceChildren(...page.records.map(row));
  $("none").hidden = page.records.length > 0;
  $("more").hidden = !next;
  setText($("more"), from ? "Newer" : "Older");
  $("newest").hidden = !(from || place);
}

function row(record) {
  const time = new Date(record.timestamp);
  const value = make("td", { class: "value" });
  fill(value, record);
  const headers = Object.entries(record.headers).map(([name, each]) => `${name}: ${each}`).join("\n");
  return make("tr", { title: headers && `headers\n${headers}`, "data-place": place(record) },
    make("td", { class: "number" }, String(record.partition)),
    make("td", { class: "number" }, whole(record.offset)),
    make("td", { class: "soft" }, record.timestamp < 0 ? "none" : time.toISOString().replace("T", " ").replace("Z", "")),
    make("td", record.key === null ? { class: "soft" } : { class: "key", title: record.key }, record.key ?? "none"),
    value);
}

function fill(cell, record) {
  cell.replaceChildren();
  const tag = (text, kind) => cell.append(make("span", { class: `tag ${kind}` }, text));
  if (record.kind === "tombstone") tag("tombstone: deletes its key", "soft");
  if (record.undecoded) tag(`not decoded: ${record.undecoded}`, "bad");
  else if (record.kind === "bytes") tag("bytes", "soft");
  cell.append(record.value);
  const shown = [...record.value].length;
  if (shown < record.characters) {
    const all = make("button", { type: "button" }, `… all ${whole(record.characters)} characters`);
    all.onclick = async () => {
      const page = (await ask(`${base}/records?partition=${record.partition}&offset=${record.offset}`).catch(tell))?.answer;
      if (page?.records.length) fill(cell, page.records[0]);
    };
    cell.append(all);
  }
}

await about();
live();
