// Everything works without this module. It updates open pages, changes the theme, selects all rows,
// and copies commands. It puts nothing into a page that the server has not rendered and escaped.

const body = document.body;
const root = document.documentElement;
const live = document.getElementById("live");

function prepare() {
  for (const all of document.querySelectorAll("[data-all]")) all.hidden = false;
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
  choose();
}

// Buttons that act on chosen rows are enabled when there are any.
function choose() {
  const chosen = document.querySelectorAll('input[name="id"]:checked').length;
  for (const button of document.querySelectorAll("[data-needs-choice]")) {
    button.disabled = chosen === 0;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) {
    for (const box of document.querySelectorAll('input[name="id"]')) {
      box.checked = event.target.checked;
    }
  }
  choose();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = document.querySelector(`#${button.dataset.copy} pre`).textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select it and copy";
  }
});

// Theme: kept in a cookie, so that the server renders it.
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = root.dataset.theme === "auto" ? system : root.dataset.theme;
  root.dataset.theme = now === "dark" ? "light" : "dark";
  const path = new URL(body.dataset.liveUrl, location.href).pathname.replace(/\/live$/, "") || "/";
  const year = 31536000;
  document.cookie = `chancy_theme=${root.dataset.theme};path=${path};max-age=${year};samesite=lax`;
});

// Liveness: the server says that something has changed, and the marked parts are fetched again.
function busy() {
  const inside = document.activeElement?.closest("[data-live] form");
  const typing = inside && document.activeElement.matches("input:not([type=checkbox]),select");
  return document.hidden || typing || document.querySelector('input[name="id"]:checked') !== null;
}

let fetching = false;
let again = false;
async function refresh() {
  if (fetching || busy()) {
    again = true;
    return;
  }
  fetching = true;
  again = false;
  try {
    const response = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
    if (response.ok && !busy()) swap(await response.text());
  } catch {
    show("off");
  }
  fetching = false;
}

function swap(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    if (!next || next.outerHTML === part.dataset.was) continue;
    const was = next.outerHTML;
    const open = [...part.querySelectorAll("details")].map((one) => one.open);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const place = focused ? [...part.querySelectorAll("a,button,input,summary")].indexOf(focused) : -1;
    const scrolled = [...part.querySelectorAll(".scroll,.graph,pre")].map((one) => one.scrollLeft);
    part.replaceChildren(...[...next.childNodes].map((node) => document.importNode(node, true)));
    part.dataset.was = was;
    const details = [...part.querySelectorAll("details")];
    if (details.length === open.length) details.forEach((one, i) => { one.open = open[i]; });
    [...part.querySelectorAll(".scroll,.graph,pre")].forEach((one, i) => { one.scrollLeft = scrolled[i] ?? 0; });
    if (place >= 0) part.querySelectorAll("a,button,input,summary")[place]?.focus();
  }
  prepare();
}

function show(state) {
  live.className = `live ${state}`;
  const text = state === "on" ? "live: this page updates itself" : "not live: trying again";
  live.title = text;
  live.setAttribute("aria-label", text);
}

prepare();
// On a phone the menu is a strip.
const menu = document.querySelector(".frame > nav");
const here = menu.querySelector("[aria-current]");
if (here) menu.scrollLeft = here.offsetLeft - menu.clientWidth / 2 + here.clientWidth / 2;
if (document.querySelector("[data-live]")) {
  const source = new EventSource(body.dataset.liveUrl);
  // Each stream ends after a while, and is opened again a second later.
  let lost = 0;
  const notice = document.getElementById("lost");
  source.addEventListener("open", () => { clearTimeout(lost); lost = 0; if (notice.hidden) show("on"); });
  source.addEventListener("error", () => { lost ||= setTimeout(() => show("off"), 4000); });
  source.addEventListener("look", () => { show("on"); notice.hidden = true; refresh(); });
  source.addEventListener("lost", () => { show("off"); notice.hidden = false; });
  document.addEventListener("visibilitychange", () => { if (again && !document.hidden) refresh(); });
  addEventListener("pagehide", () => source.close());
}
// A page that could not be made is asked for again.
if (document.querySelector("[data-retry]")) setTimeout(() => location.reload(), 5000);
