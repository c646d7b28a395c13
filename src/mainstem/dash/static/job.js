import { $, follow, make, mood, rate, setText, whole } from "./common.js";

const job = decodeURIComponent(location.pathname.split("/").pop());
const figures = { lag: "lag", rows: "rows", rate: "rows/s", late: "late", batch: "batch" };
const cards = new Map();

document.title = `${job} · Mainstem`;
setText($("name"), job);

follow((state) => {
  const versions = state.jobs.filter((each) => each.job === job);
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
});

function card(version) {
  const part = (name, tag = "span") => make(tag, { "data-part": name });
  return make("section", { "aria-label": `version ${version.version}` },
    make("div", { class: "bar" },
      make("h2", {}, `Version ${version.version}`), part("current"), part("state"),
      // Their commands come with versions; the places are kept so that nothing moves then.
      make("div", { class: "actions", role: "group", "aria-label": "Commands", hidden: true })),
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
  setText(part("current"), version.current ? "current" : "");
  part("current").className = version.current ? "tag good" : "";
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
}

function links(element, topics) {
  if (element.textContent === (topics.join(", ") || "–")) return;
  element.replaceChildren(...topics.flatMap((topic, at) => [at ? ", " : "", make("a", { href: `/topics/${encodeURIComponent(topic)}` }, topic)]));
  if (!topics.length) element.append("–");
}
