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

export const whole = (number) => (number.source ? BigInt(number.source) : Math.round(number)).toLocaleString("en");

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "";
  return `${perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : whole(perSecond)}/s`;
}

export function mood(state) {
  if (state === "failed") return "bad";
  if (state === "running") return "good";
  return state === "stopped" || state === "idle" || !state ? "soft" : "wait";
}

// Events of an address while the page can be seen: a browser has six connections to a server for all of its tabs, and a
// seventh tab would wait for ever. Its own connecting again ends with an answer that is an error; ours does not.
export function stream(address, { onOpen, onMessage, onLost }) {
  let [events, again] = [null, 0];
  const close = () => {
    clearTimeout(again);
    events?.close();
    events = null;
  };
  const open = () => {
    if (events || document.hidden) return;
    events = new EventSource(address());
    events.onopen = () => onOpen?.();
    events.onmessage = (event) => onMessage(JSON.parse(event.data));
    events.onerror = () => {
      onLost?.();
      if (events?.readyState === EventSource.CLOSED) {
        close();
        again = setTimeout(open, 2000);
      }
    };
  };
  const seen = () => (document.hidden ? close() : open());
  const parts = { visibilitychange: seen, pagehide: close, pageshow: open }; // the last: the browser had kept the page
  for (const [name, listener] of Object.entries(parts)) addEventListener(name, listener);
  open();
  return {
    close: () => {
      for (const [name, listener] of Object.entries(parts)) removeEventListener(name, listener);
      close();
    },
  };
}

// Calls back with each state.
export function follow(show) {
  const link = (kind, text) => {
    $("link").className = kind;
    setText($("link"), text);
  };
  stream(() => "/events", {
    onOpen: () => $("link").className === "live" || link("", "reading"),
    onLost: () => link("lost", "no connection, trying again"),
    onMessage: (state) => {
      link("live", "live");
      setText($("project"), state.project);
      problems.state = state.problem;
      showProblems();
      show(state);
    },
  });
}

// What is wrong with the platform, and with what was asked here.
const problems = { state: "", here: "" };

function showProblems() {
  const text = [problems.state, problems.here].filter(Boolean).join(" · ");
  setText($("problem"), text);
  $("problem").hidden = !text;
}

export function tell(error) {
  problems.here = error ? error.message : "";
  showProblems();
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

// What was last written or read from here: a read that carries it sees all of that.
export const token = {
  get: () => sessionStorage.getItem("basis") ?? "",
  set: (text) => text && sessionStorage.setItem("basis", text),
  add: (text) => token.set([token.get(), text].filter(Boolean).join(",")),
};
