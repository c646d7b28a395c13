import { $, ask, exactly, follow, make, mood, rate, setText, shown, tell, token, where, whole } from "./common.js";

const [node, name] = location.pathname.split("/").slice(-2).map(decodeURIComponent);
const base = where("views", node, name);
const OURS = ["limit", "after", "at", "timeout", "offset", "q", "version"]; // columns of such names have a _ in front
const PAGE = 100;
let about = null;
let state = "";
let begins = false;
let asked = 0; // the last question: the answer of an earlier one comes too late

document.title = `${name} · Mainstem`;
setText($("name"), name);
$("token").value = token.get();

follow(({ views }) => {
  const here = views.find((each) => each.node === node && each.view === name);
  if (here?.state !== state) begin();
  state = here?.state;
  setText($("summary"), here ? `${here.kind} of ${here.topics.join(", ")} · on ${node}` : `the project has no such view on ${node}`);
  $("nodes").replaceChildren(...views.filter((each) => each.view === name).map(row));
});

function row(view) {
  const at = make("a", { href: where("views", view.node, view.view) }, view.node);
  return make("tr", {},
    make("td", {}, view.node === node ? make("b", {}, view.node) : at),
    make("td", { class: mood(view.state) }, [view.why ? `${view.state}: ${view.why}` : view.state, view.moving].filter(Boolean).join("; ")),
    make("td", { class: "number" }, whole(view.rows)),
    make("td", { class: "number" }, whole(view.count)),
    make("td", { class: "number" }, view.lag === null ? "" : whole(view.lag)),
    make("td", { class: "number" }, rate(view.rate)),
    make("td", {}, ...view.reads.flatMap((topic, at) => [at ? ", " : "", make("a", { href: where("topics", topic) }, topic)])));
}

const input = (id, label, options = {}) => make("label", {}, `${label} `, make("input", { id, spellcheck: false, autocomplete: "off", ...options }));
const forms = {
  "key-value": () => [
    ...about.key.map((column) => input(`key-${column}`, column, { size: 14 })),
    ...(about.versions ? [input("at", "as of", { size: 18, placeholder: "now; 0:120, or a token" })] : []),
  ],
  search: () => [input("q", "Words", { size: 48, placeholder: "boeing, manufacturer:boeing, boeing AND 737" })],
  sql: () => [make("textarea", { id: "sql", rows: 4, spellcheck: false, "aria-label": "SQL" }, `SELECT * FROM ${table(about.topics[0])} LIMIT 20`)],
};

function table(topic) {
  const plain = topic.replace(/[^\p{L}\p{N}_]/gu, "_");
  return /^[a-z_][a-z0-9_]*$/.test(plain) ? plain : `"${plain}"`;
}

// What to ask, and how its answer becomes rows of a table.
const questions = {
  "key-value": (after) => {
    const given = about.key.map((column) => [column, $(`key-${column}`).value.trim()]);
    const filled = given.filter(([, value]) => value !== "");
    const parameters = new URLSearchParams(filled.map(([column, value]) => [OURS.includes(column) ? `_${column}` : column, value]));
    if (about.versions && $("at").value.trim()) parameters.set("at", $("at").value.trim());
    if (filled.length === about.key.length && filled.length) {
      return [`row?${parameters}`, {}, ({ row, partition, offset }) => ({ rows: [row], said: `partition ${shown(partition)}, offset ${shown(offset)}` })];
    }
    parameters.set("limit", PAGE);
    if (after) parameters.set("after", after);
    return [`rows?${parameters}`, {}, ({ rows, after: next }) => ({ rows, after: next, said: next && rows.length < PAGE ? "so far" : "" })];
  },
  search: () => [`search?${new URLSearchParams({ q: $("q").value, limit: PAGE })}`, {}, ({ total, hits }) => ({
    rows: hits.map(({ topic, score, row }) => ({ topic, score: Number(score).toFixed(2), row: fields(row) })),
    said: `${shown(total)} fit`,
  })],
  sql: () => [
    "query",
    { method: "POST", body: JSON.stringify({ sql: $("sql").value, limit: 10 * PAGE }) },
    ({ columns, rows, more }) => ({ columns, rows, said: more ? "and there are more" : "" }),
  ],
};

function fields(row) {
  const filled = Object.entries(row).filter(([, value]) => value !== null);
  return make("span", {}, ...filled.flatMap(([column, value]) => [make("span", { class: "soft" }, `${column} `), `${shown(value)}  `]));
}

$("ask").onsubmit = (event) => {
  event.preventDefault();
  send("");
};
$("more").onclick = () => send($("more").dataset.after);
$("ask").onkeydown = (event) => {
  if (event.key === "Enter" && event.ctrlKey) $("ask").requestSubmit();
};

async function send(after) {
  const question = ++asked;
  const [path, options, rows] = questions[about.kind](after);
  const own = $("own").checked && $("token").value.trim();
  $("answered").hidden = false;
  $("answered").classList.add("stale");
  setText($("told"), "asking …");
  const began = performance.now();
  try {
    const { answer, response } = await ask(`${base}/${path}`, { ...options, headers: own ? { "Mainstem-Basis": own } : {} }, exactly);
    if (question !== asked) return;
    const took = performance.now() - began;
    remember(response.headers.get("Mainstem-Basis"));
    show(rows(answer), took, Boolean(after));
    failed("");
  } catch (error) {
    if (question !== asked) return;
    failed(error.message);
    setText($("told"), "");
    if (!after) fill([], []);
  } finally {
    if (question === asked) $("answered").classList.remove("stale");
  }
}

function failed(message) {
  setText($("failed"), message);
  $("failed").hidden = !message;
}

function remember(basis) {
  if (!basis) return;
  token.set(basis);
  $("token").value = basis;
  $("token").title = "What this answer may have shown: a read that carries it never shows less";
}

function show({ columns, rows, after, said }, took, goesOn) {
  const names = columns ?? [...new Set(rows.flatMap((each) => Object.keys(each)))];
  fill(names, rows, goesOn);
  const count = $("rows").tBodies[0].rows.length;
  setText($("told"), [`${whole(count)} row${count === 1 ? "" : "s"}`, said, `${took.toFixed(0)} ms`].filter(Boolean).join(" · "));
  $("more").hidden = !after;
  $("more").dataset.after = shown(after);
}

function fill(names, rows, goesOn = false) {
  const cell = (value) => (value instanceof Node ? make("td", {}, value) : make("td", value instanceof Number ? { class: "number" } : {}, shown(value)));
  const body = rows.map((each) => make("tr", {}, ...names.map((column, at) => cell(Array.isArray(each) ? each[at] : each[column]))));
  if (goesOn && $("rows").tBodies[0].rows.length) return $("rows").tBodies[0].append(...body); // pages may have no rows
  const number = (at) => rows.some((each) => (Array.isArray(each) ? each[at] : each[names[at]]) instanceof Number);
  $("rows").tHead.replaceChildren(make("tr", {}, ...names.map((column, at) => make("th", number(at) ? { class: "number" } : {}, column))));
  $("rows").tBodies[0].replaceChildren(...body);
  $("more").hidden = true;
}

// A node that has just started does not know the columns of its keys yet.
const isReady = () => about !== null && (about.kind !== "key-value" || about.key.length > 0);

async function begin() {
  if (begins || isReady()) return; // what was typed stays
  begins = true;
  const found = await ask(`${base}/about`).catch(tell);
  begins = false;
  if (!found) return;
  tell();
  about = found.answer;
  $("go").disabled = !isReady();
  $("inputs").replaceChildren(...forms[about.kind]());
  setText($("tables"), isReady() ? about.tables.replace(/^One SELECT over: /, "") : "the columns of its key are not known yet");
}

$("go").disabled = true;
begin();
