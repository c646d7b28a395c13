import { $, follow, make, mood, rate, setText, whole } from "./common.js";

const [WIDTH, HEIGHT, DOWN] = [194, 78, 92]; // of a card; from one to the next below it
const [CLOSEST, WIDEST] = [222, 260]; // from one to the next at its right, as the window allows
const cards = new Map();
let drawn = "";
let last = null;

addEventListener("resize", () => {
  if (!last) return;
  draw(last);
  flow(last);
});

follow((state) => {
  last = state;
  const shape = JSON.stringify([state.nodes.map((n) => [n.id, n.layer]), state.edges]);
  if (shape !== drawn) {
    drawn = shape;
    draw(state);
  }
  for (const node of state.nodes) fill(cards.get(node.id), node);
  flow(state);
  showAudit(state.audit);
  showProcesses(state.processes);
  setText($("disk"), state.disk && `Disk: ${state.disk}`);
});

$("audit").onclick = () => {
  $("audit").disabled = true;
  fetch("/audit", { method: "POST" }).catch(() => { $("audit").disabled = false; });
};

function flow({ nodes }) {
  const rates = new Map(nodes.map((node) => [node.id, node.rate ?? 0]));
  for (const line of $("edges").children) {
    line.classList.toggle("flows", rates.get(line.dataset.source) > 0 && rates.get(line.dataset.target) > 0);
  }
}

function draw({ nodes, edges }) {
  const columns = new Set(nodes.map((node) => node.layer)).size;
  const room = ($("scroll").clientWidth - 8 - WIDTH) / Math.max(1, columns - 1);
  const places = placed(nodes, edges, Math.floor(Math.min(WIDEST, Math.max(CLOSEST, room))));
  $("empty").hidden = nodes.length > 0;
  const path = $("path");
  const [focused, there] = [document.activeElement, new Set(nodes.map((node) => node.id))];
  for (const [id, card] of cards) {
    if (!there.has(id)) {
      card.remove();
      cards.delete(id);
    }
  }
  for (const node of [...nodes].sort((a, b) => places.get(a.id).x - places.get(b.id).x || places.get(a.id).y - places.get(b.id).y)) {
    if (!cards.has(node.id)) cards.set(node.id, card(node));
    const element = cards.get(node.id);
    element.style.left = `${places.get(node.id).x}px`;
    element.style.top = `${places.get(node.id).y}px`;
    path.append(element); // keys go from left to right, from top to bottom
  }
  focused?.focus();
  const right = Math.max(0, ...[...places.values()].map((place) => place.x)) + WIDTH;
  const bottom = Math.max(0, ...[...places.values()].map((place) => place.y)) + HEIGHT;
  path.style.width = `${right}px`;
  path.style.height = `${bottom}px`;
  $("edges").setAttribute("width", right);
  $("edges").setAttribute("height", bottom);
  $("edges").replaceChildren(...edges.map((edge) => line(edge, places)));
}

// Columns by layer; within one, each card is near the middle of those that it is tied to.
function placed(nodes, edges, across) {
  const columns = [];
  for (const node of nodes) (columns[node.layer] ??= []).push(node.id);
  const used = columns.filter(Boolean);
  const tied = new Map(nodes.map((node) => [node.id, []]));
  for (const { source, target } of edges) {
    tied.get(source).push(target);
    tied.get(target).push(source);
  }
  const tallest = Math.max(0, ...used.map((column) => column.length));
  const rows = new Map();
  const spread = (column) => column.forEach((id, row) => rows.set(id, row + (tallest - column.length) / 2));
  used.forEach(spread);
  for (let sweep = 0; sweep < 6; sweep++) {
    for (const column of sweep % 2 ? [...used].reverse() : used) {
      const wish = (id) => {
        const near = tied.get(id).map((each) => rows.get(each));
        return near.length ? near.reduce((a, b) => a + b, 0) / near.length : rows.get(id);
      };
      const wishes = new Map(column.map((id) => [id, wish(id)]));
      column.sort((a, b) => wishes.get(a) - wishes.get(b) || (a < b ? -1 : 1));
      spread(column);
    }
  }
  const places = new Map();
  used.forEach((column, layer) => {
    for (const id of column) places.set(id, { x: layer * across, y: Math.round(rows.get(id) * DOWN) });
  });
  return places;
}

function line({ source, target }, places) {
  const [from, to] = [places.get(source), places.get(target)];
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = Math.max(14, (x2 - x1) / 2);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`);
  path.classList.toggle("far", x2 - x1 > WIDTH);
  path.dataset.source = source;
  path.dataset.target = target;
  return path;
}

function card(node) {
  const name = encodeURIComponent(node.name);
  const pages = { topic: `/topics/${name}`, job: `/jobs/${name}`, view: node.page };
  const element = make(pages[node.kind] ? "a" : "div", { class: `card ${node.kind}` });
  if (pages[node.kind]) element.href = pages[node.kind];
  const row = (kind) => make("span", { class: kind }, make("span"), make("span"));
  element.append(row("top"), row("middle"), row("low"));
  const near = (on) => () => {
    for (const path of $("edges").children) {
      if ([path.dataset.source, path.dataset.target].includes(node.id)) path.classList.toggle("near", on);
    }
  };
  element.onmouseenter = element.onfocus = near(true);
  element.onmouseleave = element.onblur = near(false);
  return element;
}

function fill(element, node) {
  const [top, middle, low] = [...element.children].map((row) => [...row.children]);
  setText(top[0], node.name);
  setText(top[1], node.state);
  top[1].className = node.state ? `state ${mood(node.state)} ${node.state === "running" ? "quiet" : ""}` : ""; // a dot, so that names have room
  setText(middle[0], node.position);
  setText(middle[1], rate(node.rate));
  const failing = Boolean(node.error) && node.state !== "idle";
  element.classList.toggle("failing", failing);
  setText(low[0], node.error || node.detail);
  low[0].className = failing ? "why" : "";
  const lag = node.lag === null ? "" : node.lag === 0 ? "no lag" : `lag ${whole(node.lag)}${node.lag_unit === "bytes" ? " B" : ""}`;
  setText(low[1], node.audit || lag);
  const verdict = { balanced: "good", WRONG: "bad" }[node.audit] ?? "wait";
  low[1].className = node.audit ? `state ${verdict}` : node.lag ? "wait" : "";
  const about = [`${node.kind === "sink" ? "destination" : node.kind} ${node.name}`, node.state, node.audit, node.error, node.position, node.detail, lag];
  element.title = about.filter(Boolean).join("\n");
}

function showAudit(audit) {
  $("audit").disabled = Boolean(audit?.running);
  if (!audit) return;
  const verdict = $("verdict");
  const counts = Object.entries(audit.counts).map(([name, count]) => `${count} ${name}`).join(", ");
  const wrong = audit.counts.WRONG ?? 0;
  if (audit.running) setText(verdict, "Counting …");
  else if (audit.error) setText(verdict, audit.error);
  else {
    const said = wrong ? `${wrong} lines are WRONG` : audit.counts["in flight"] ? "Nothing is wrong so far" : "The books balance";
    setText(verdict, `${said}: ${counts || "nothing to count"}; ${new Date(audit.at_ms).toLocaleTimeString("en-GB")}, in ${audit.seconds.toFixed(1)} s.`);
  }
  verdict.className = wrong || audit.error ? "bad" : audit.running || audit.counts["in flight"] ? "wait" : "good";
  $("wrong").replaceChildren(...audit.wrong.map((text) => make("li", {}, text)));
}

function showProcesses(processes) {
  const rows = processes.map((each) => make("tr", {},
    make("td", {}, each.name),
    make("td", { class: mood(each.state), title: each.error }, each.error ? `${each.state}: ${each.error}` : each.state),
    make("td", { class: "number" }, each.pid === null ? "" : String(each.pid)),
    make("td", { class: "number" }, String(each.restarts))));
  $("processes").replaceChildren(...rows);
  $("processes").closest("section").hidden = rows.length === 0;
}
