// Follows the page: sections that change on the server are put in place as they come. Without
// this the page shows how things stood when it was loaded.
"use strict";

const pulse = document.getElementById("pulse");
const at = document.getElementById("at");

// replace puts a section in place. What somebody has selected stays until they are done with
// it, and a link that has the focus has it again.
function replace(section, html) {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && section.contains(selection.anchorNode)) {
    return;
  }
  const scrolled = [...section.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const href = focused && focused.getAttribute("href");
  const label = focused && focused.getAttribute("aria-label");
  section.innerHTML = html;
  [...section.querySelectorAll(".scroll")].forEach((e, i) => { e.scrollLeft = scrolled[i] || 0; });
  if (focused) {
    const again = [...section.querySelectorAll("a, [tabindex]")].find((e) =>
      href ? e.getAttribute("href") === href : label && e.getAttribute("aria-label") === label);
    if (again) {
      again.focus({ preventScroll: true });
    }
  }
}

// follow has the page change as what it shows does.
function follow() {
  const source = new EventSource("/live" + location.pathname + location.search);
  source.addEventListener("sections", (event) => {
    const update = JSON.parse(event.data);
    for (const [name, html] of Object.entries(update.sections)) {
      const section = document.getElementById(name);
      if (section) {
        replace(section, html);
      }
    }
    document.title = update.title + " · Tender";
    at.dateTime = update.at;
    at.textContent = new Date(update.at).toISOString().slice(0, 19).replace("T", " ") + " UTC";
    pulse.className = "live";
  });
  source.addEventListener("gone", (event) => {
    pulse.className = "lost";
    document.title = JSON.parse(event.data).title + " · Tender";
  });
  source.onerror = () => { pulse.className = "lost"; }; // it connects again by itself
}

if (document.querySelector("main[data-live]")) {
  follow();
}
