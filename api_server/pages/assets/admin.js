"use strict";
// Keeps the overview up to date: it loads the page every few seconds and replaces only the parts that have changed, so
// that the scroll position, the focus and opened tables stay.
(() => {
  const live = document.getElementById("live");
  if (!live) return;
  const pause = Number(live.dataset.seconds) * 1000;

  function renew(old, fresh) {
    const opened = [...old.querySelectorAll("details[open]")].map((each) => each.id);
    for (const id of opened) fresh.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
    if (old.outerHTML === fresh.outerHTML || old.contains(document.activeElement)) return;
    old.replaceWith(fresh);
  }

  function parts(root) {
    return [...root.querySelectorAll("#failures, #figures, #moment, #history figure")];
  }

  async function load() {
    const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
    if (answer.redirected) return location.reload(); // to sign in, and back
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok || !page.getElementById("live")) throw new Error(`status ${answer.status}`);
    for (const fresh of parts(page)) {
      const old = document.getElementById(fresh.id);
      if (old) renew(old, document.importNode(fresh, true));
    }
  }

  async function go() {
    try {
      if (!document.hidden) await load();
      document.getElementById("stale")?.remove();
    } catch (problem) {
      if (!document.getElementById("stale")) {
        const note = document.createElement("p");
        note.id = "stale";
        note.className = "problem";
        note.setAttribute("role", "alert");
        note.textContent = `The page could not be updated: ${problem.message}. Retrying…`;
        live.prepend(note);
      }
    }
    setTimeout(go, pause);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) load().catch(() => {}); });
  setTimeout(go, pause);
})();
