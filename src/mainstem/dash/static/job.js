import { $, ask, exactly, follow, make, mood, rate, setText, shown, tell, token, where, whole } from "./common.js";

const job = decodeURIComponent(location.pathname.split("/").pop());
const figures = { lag: "lag", rows: "rows", rate: "rows/s", late: "late", batch: "batch" };
const cards = new Map();
const mine = new Set(); // operations that were begun here
let versions = [];
let ready = new Map(); // version -> what has to be read before readers can be moved to it
let operations = [];
let looked = "";
let lookedAt = 0;

document.title = `${job} · Mainstem`;
setText($("name"), job);

follow((state) => {
  versions = state.jobs.filter((each) => each.job === job);
  operations = state.operations.filter((each) => each.job === job);
  $("none").hidden = versions.length > 0;
  for (const each of versions) {
    if (!cards.has(each.version)) {
      cards.set(each.version, card(each));
      $("versions").append(cards.get(each.version));
    }
    fill(cards.get(each.version), each);
  }
  for (const [version, element] of cards) {
    if (!versions.some((each) => each.version === version)) {
      element.remove();
      cards.delete(version);
    }
  }
  buttons($("job-actions"), jobCommands);
  showOperations();
  const now = JSON.stringify([versions.map((each) => [each.version, each.batch, each.current])]);
  const waits = [...ready.values()].some((each) => !each.ready) && Date.now() - lookedAt > 2000;
  if (now !== looked || waits) {
    looked = now;
    look();
  }
});

// Which versions are ready is asked when a batch has ended, and now and then while one is not: it is more work than a
// state.
async function look() {
  lookedAt = Date.now();
  if (versions.length < 2) return;
  const found = await ask(`${where("jobs", job)}/versions`).catch(() => null);
  if (!found) return;
  ready = new Map(found.answer.map((each) => [each.version, each]));
  for (const each of versions) fill(cards.get(each.version), each);
}

function card(version) {
  const part = (name, tag = "span") => make(tag, { "data-part": name });
  return make("section", { "aria-label": `version ${version.version}` },
    make("div", { class: "bar" },
      make("h2", {}, `Version ${version.version}`), part("current"), part("ready"), part("state"),
      make("div", { class: "actions", role: "group", "aria-label": "Commands" })),
    part("why", "p"),
    make("div", { class: "figures" }, ...Object.entries(figures).map(([name, word]) => make("div", {}, part(name, "b"), make("span", {}, word)))),
    make("dl", {},
      make("dt", {}, "reads"), part("inputs", "dd"),
      make("dt", {}, "writes"), part("output", "dd"),
      make("dt", {}, "determinism"), part("determinism", "dd"),
      make("dt", {}, "code"), make("dd", {}, part("code", "code"))));
}

function fill(element, version) {
  const part = (name) => element.querySelector(`[data-part="${name}"]`);
  setText(part("current"), version.current ? "current" : version.previous ? "previous" : "");
  part("current").className = version.current ? "tag good" : version.previous ? "tag soft" : "";
  const behind = version.current ? undefined : ready.get(version.version);
  setText(part("ready"), !behind ? "" : behind.ready ? "ready" : behind.behind ? `${whole(behind.behind)} offsets until it is ready` : "not ready: it has not closed all windows that readers have seen");
  part("ready").className = behind?.ready ? "tag good" : "soft";
  setText(part("state"), version.state || "not running");
  part("state").className = `state ${mood(version.state)}`;
  setText(part("why"), version.why);
  part("why").className = version.state === "failed" ? "bad" : "soft";
  for (const name of ["lag", "rows", "late", "batch"]) setText(part(name), version[name] === null ? "–" : whole(version[name]));
  setText(part("rate"), rate(version.rate).replace("/s", "") || "–");
  setText(part("determinism"), [version.determinism || "not known yet", version.reason].filter(Boolean).join(": "));
  setText(part("code"), version.code || "–");
  links(part("inputs"), version.inputs);
  links(part("output"), version.output ? [version.output] : []);
  buttons(element.querySelector(".actions"), commands, version);
}

function links(element, topics) {
  if (element.textContent === (topics.join(", ") || "–")) return;
  element.replaceChildren(...topics.flatMap((topic, at) => [at ? ", " : "", make("a", { href: where("topics", topic) }, topic)]));
  if (!topics.length) element.append("–");
}

// What can be done, by version: a word for the button, what a person should know before, and what is sent.
const commands = {
  cutover: {
    when: (version) => !version.current && !version.previous && version.batch !== null,
    word: "Cut over",
    title: ({ version }) => `Cut over to version ${version}?`,
    text: ({ version }) => `Readers of ${job} move to version ${version} as soon as it has read all that version ${current()} has read now${left(version)}. Version ${current()} goes on, and Revert leads back to it.`,
    body: ({ version }) => ({ version }),
  },
  revert: {
    when: (version) => version.previous,
    word: "Revert to this",
    title: ({ version }) => `Revert to version ${version}?`,
    text: ({ version }) => `Readers of ${job} move back to version ${version} as soon as it has read all that version ${current()} has read now${left(version)}. Reverted once more, they go forward again.`,
    body: ({ version }) => ({ version }), // by another page a revert may lead elsewhere by now: it is refused then
  },
};

commands.diff = {
  when: (version) => !version.current && version.batch !== null && current() !== "",
  word: "Compare",
  body: ({ version }) => ({ left: current(), right: version }),
};

const jobCommands = {
  reprocess: {
    when: () => versions.some((each) => each.code),
    word: "Reprocess",
    title: () => `Build ${job} anew?`,
    text: () => "The next version of it is started from the code as it is now, from the earliest records, beside what runs. Readers stay where they are until you cut over.",
    option: "also if a version runs this very code",
    body: () => ($("confirm-anyway").checked ? { anyway: "yes" } : {}),
  },
};
const conflicts = { cutover: "readers", revert: "readers", reprocess: "versions", diff: "diff" };

const current = () => versions.find((each) => each.current)?.version ?? "";

function left(version) {
  const behind = ready.get(version)?.behind;
  return behind ? ` (${whole(behind)} offsets to go)` : "";
}

function buttons(group, known, version) {
  const wanted = Object.keys(known).filter((kind) => known[kind].when(version));
  if (group.dataset.kinds !== wanted.join()) {
    group.dataset.kinds = wanted.join();
    group.replaceChildren(...wanted.map((kind) => {
      const button = make("button", { type: "button", "data-kind": kind }, known[kind].word);
      button.onclick = () => confirm(kind, known[kind], versions.find((each) => each.version === version?.version));
      return button;
    }));
  }
  group.hidden = wanted.length === 0;
  const going = operations.filter((each) => each.state === "running").map((each) => conflicts[each.kind]);
  for (const button of group.children) button.disabled = going.includes(conflicts[button.dataset.kind]);
}

function confirm(kind, command, version) {
  if (!command.title) return send(kind, command.body(version)); // it changes nothing
  setText($("confirm-title"), command.title(version));
  setText($("confirm-text"), command.text(version));
  setText($("confirm-yes"), command.word);
  $("confirm-option").hidden = !command.option;
  setText($("confirm-option").querySelector("span"), command.option ?? "");
  $("confirm-anyway").checked = false;
  $("confirm-yes").onclick = () => {
    $("confirm").close();
    send(kind, command.body(version));
  };
  $("confirm").showModal();
}
$("confirm-no").onclick = () => $("confirm").close();

async function send(kind, body) {
  tell();
  const sent = await ask(`${where("jobs", job)}/${kind}`, { method: "POST", body: JSON.stringify(body) }).catch(tell);
  if (sent) mine.add(sent.answer.id);
}

const moods = { running: "wait", done: "good", failed: "bad", "given up": "soft" };
const shownOperations = new Map();

// The last one of each kind, the newest first.
function showOperations() {
  for (const [id, element] of shownOperations) {
    if (operations.some((each) => each.id === id)) continue;
    element.remove();
    shownOperations.delete(id);
  }
  for (const operation of operations) {
    if (!shownOperations.has(operation.id)) {
      shownOperations.set(operation.id, operationElement(operation));
      $("operations").prepend(shownOperations.get(operation.id));
    }
    fillOperation(shownOperations.get(operation.id), operation);
    if (operation.basis && mine.delete(operation.id)) token.add(operation.basis); // reads from here see what came
  }
}

function operationElement(operation) {
  const part = (name, tag = "span", options = {}) => make(tag, { "data-part": name, ...options });
  const giveUp = part("give-up", "button", { type: "button", hidden: true });
  giveUp.textContent = "Give up";
  giveUp.onclick = () => ask(where("operations", String(operation.id), "give-up"), { method: "POST" }, () => ({})).catch(tell);
  const title = operation.title[0].toUpperCase() + operation.title.slice(1);
  return make("section", { "data-kind": operation.kind, "aria-label": title },
    make("div", { class: "bar" }, make("h2", {}, title), part("state"), part("told", "p", { role: "status" }), giveUp),
    part("lines", "ul"), part("result", "div"));
}

function fillOperation(element, operation) {
  const part = (name) => element.querySelector(`[data-part="${name}"]`);
  setText(part("state"), operation.state);
  part("state").className = `state ${moods[operation.state]}`;
  const at = new Date(operation.ended_ms || operation.began_ms).toLocaleTimeString("en-GB");
  setText(part("told"), operation.state === "running" ? operation.told || "begins" : at);
  part("give-up").hidden = operation.state !== "running";
  if (element.dataset.state === operation.state) return;
  element.dataset.state = operation.state;
  part("lines").replaceChildren(...operation.lines.map((line) => make("li", { class: operation.state === "failed" ? "bad" : "" }, line)));
  if (operation.kind === "diff" && operation.has_result) showResult(part("result"), operation.id);
}

// It may be large, so no event has it.
async function showResult(element, id) {
  const found = await ask(where("operations", String(id), "result"), {}, exactly).catch(tell);
  if (found) element.replaceChildren(...difference(found.answer));
}

// Counts, the columns that differ, and rows as examples.
function difference(diff) {
  const figure = (name, word) => make("div", {}, make("b", {}, whole(diff[name])), make("span", {}, word));
  const figures = make("div", { class: "figures" }, figure("equal", "rows equal"), figure("changed", "changed"), figure("added", "added"), figure("removed", "removed"));
  const exact = make("p", {}, make("span", { class: `tag ${diff.exact ? "good" : "wait"}` }, diff.exact ? "exact" : "not exact"),
    diff.exact ? "Both had read the same: every difference comes from the code." : diff.why);
  const columns = diff.columns.map((each) => make("tr", {}, make("td", {}, each.column), make("td", { class: "number" }, whole(each.rows)),
    make("td", { class: "soft" }, each.only_in && `only in version ${diff[each.only_in].version}`)));
  const rows = diff.examples.map((each) => make("tr", {}, make("td", {}, each.kind), make("td", { class: "key", title: each.key ?? "" }, each.key ?? "none"), changes(each)));
  const parts = [figures, exact];
  if (columns.length) parts.push(table("Columns that differ", ["column", "rows", ""], columns));
  if (rows.length) parts.push(table("Rows that differ, for example", ["", "key", `version ${diff.left.version} → version ${diff.right.version}`], rows));
  return parts;
}

function table(title, names, rows) {
  const head = make("tr", {}, ...names.map((name) => make("th", name === "rows" ? { class: "number" } : {}, name)));
  return make("div", { class: "scroll" }, make("table", {}, make("caption", {}, title), make("thead", {}, head), make("tbody", {}, ...rows)));
}

function changes({ left, right }) {
  const cell = make("td", { class: "changes" });
  if (left === null || right === null) cell.append(shown(left ?? right));
  else if (typeof left !== "object" || typeof right !== "object") cell.append(`${shown(left)} → ${shown(right)}`);
  else {
    for (const name of new Set([...Object.keys(left), ...Object.keys(right)])) {
      const [before, after] = [shown(left[name]), shown(right[name])];
      if (before !== after) cell.append(make("span", {}, make("span", { class: "soft" }, `${name} `), `${before || "null"} → ${after || "null"}`));
    }
  }
  return cell;
}
