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
