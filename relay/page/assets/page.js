// Updates the page: each event from the server replaces the sections that have changed. Without
// this script, the page shows the state at the time of loading.
"use strict";

const pulse = document.getElementById("pulse");
const at = document.getElementById("at");

// waiting has the new content of sections that the user is using, by name.
const waiting = new Map();

// pressed is the element on which the user holds a button down; null if there is none.
let pressed = null;

// inUse reports whether the user has selected text in a section, or presses an element of it. If the
// element were replaced before the user releases the button, the browser would ignore the click.
function inUse(section) {
  const selection = document.getSelection();
  return section.contains(pressed) ||
    selection && !selection.isCollapsed && section.contains(selection.anchorNode);
}

// apply replaces the sections that have new content, except those in use.
function apply() {
  for (const [name, html] of waiting) {
    const section = document.getElementById(name);
    if (!section || !inUse(section)) {
      waiting.delete(name);
      if (section) {
        replace(section, html);
      }
    }
  }
}

// replace replaces the content of a section, and keeps the focus and the scroll positions.
function replace(section, html) {
  const scrolled = [...section.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const href = focused && focused.getAttribute("href");
  const label = focused && focused.getAttribute("aria-label");
  section.innerHTML = html;
  [...section.querySelectorAll(".scroll")].forEach((e, i) => { e.scrollLeft = scrolled[i] || 0; });
  if (focused) {
    const next = [...section.querySelectorAll("a, [tabindex]")].find((e) =>
      href ? e.getAttribute("href") === href : label && e.getAttribute("aria-label") === label);
    if (next) {
      next.focus({ preventScroll: true });
    }
  }
}

// follow opens the event stream and applies its events.
function follow() {
  const source = new EventSource("/live" + location.pathname + location.search);
  source.addEventListener("sections", (event) => {
    const update = JSON.parse(event.data);
    for (const [name, html] of Object.entries(update.sections)) {
      waiting.set(name, html);
    }
    apply();
    document.title = update.title + " · Tender";
    at.dateTime = update.at;
    at.textContent = new Date(update.at).toISOString().slice(0, 19).replace("T", " ") + " UTC";
    pulse.className = "live";
  });
  source.addEventListener("gone", (event) => {
    pulse.className = "lost";
    document.title = JSON.parse(event.data).title + " · Tender";
  });
  source.onerror = () => { pulse.className = "lost"; }; // the browser reconnects
}

if (document.querySelector("main[data-live]")) {
  for (const type of ["pointerdown", "pointerup", "pointercancel"]) {
    document.addEventListener(type, (event) => {
      pressed = type === "pointerdown" ? event.target : null;
      setTimeout(apply); // after the click
    });
  }
  document.addEventListener("selectionchange", apply);
  follow();
}
