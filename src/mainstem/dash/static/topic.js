import { $, ask, follow, make, rate, setText, shown, tell, whole } from "./common.js";

const topic = decodeURIComponent(location.pathname.split("/").pop());
const base = `/topics/${encodeURIComponent(topic)}`;
const records = $("records").tBodies[0];
let next = ""; // where the page after this one begins
let end = 0;

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
  show();
};
$("more").onclick = () => show(next);
$("newest").onclick = () => {
  $("from").value = "";
  show();
};

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
  return make("tr", { title: headers && `headers\n${headers}` },
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
await show();
