// What all pages share. Data gets into a page as text only, never as HTML.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text; // what is selected stays so
}

export const whole = (number) => Math.round(number).toLocaleString("en");

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "";
  return `${perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : whole(perSecond)}/s`;
}

export function mood(state) {
  if (state === "failed") return "bad";
  if (state === "running") return "good";
  return state === "stopped" || state === "idle" || !state ? "soft" : "wait";
}

// Calls back with each state; the browser itself connects again.
export function follow(show) {
  const events = new EventSource("/events");
  const link = $("link");
  events.onmessage = (event) => {
    const state = JSON.parse(event.data);
    link.className = "live";
    setText(link, "live");
    setText($("project"), state.project);
    setText($("problem"), state.problem);
    $("problem").hidden = !state.problem;
    show(state);
  };
  events.onerror = () => {
    link.className = "lost";
    setText(link, "no connection, trying again");
  };
  addEventListener("pagehide", () => events.close());
}

export const where = (...parts) => "/" + parts.map(encodeURIComponent).join("/");

// A number as it was written: a browser's own end at 2 ** 53.
class Exact extends Number {
  constructor(value, source) {
    super(value);
    this.source = source;
  }
}

export const exactly = (text) => JSON.parse(text, (_, value, context) =>
  typeof value === "number" && context?.source ? new Exact(value, context.source) : value);

export function shown(value) {
  if (value === null || value === undefined) return "";
  if (value instanceof Exact) return value.source;
  return typeof value === "object" ? written(value) : String(value);
}

function written(value) {
  if (value instanceof Exact) return value.source;
  if (Array.isArray(value)) return `[${value.map(written).join(", ")}]`;
  if (value && typeof value === "object") return `{${Object.entries(value).map(([name, each]) => `${name}: ${written(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

export async function ask(path, options, parse = JSON.parse) {
  const response = await fetch(path, options);
  const text = await response.text();
  let answer;
  try {
    answer = parse(text);
  } catch {
    throw new Error(`expected JSON, found ${response.status} ${text.slice(0, 100)}`);
  }
  if (!response.ok) throw new Error([answer.error?.message ?? text.slice(0, 200), answer.error?.hint].filter(Boolean).join(" · "));
  return { answer, response };
}

export function tell(error) {
  setText($("problem"), error ? error.message : "");
  $("problem").hidden = !error;
}

// What was last written or read from here: a read that carries it sees all of that.
export const token = {
  get: () => sessionStorage.getItem("basis") ?? "",
  set: (text) => text && sessionStorage.setItem("basis", text),
};
