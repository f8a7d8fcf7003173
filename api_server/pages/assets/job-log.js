// Follows the log of an unfinished job: requests the new part, which the server renders, and appends it. It keeps the
// end of the log in view if it was in view, pauses while the page is hidden, and stops when the log is complete.
"use strict";
(() => {
  const log = document.getElementById("log");
  const end = document.getElementById("log-end");
  const note = document.getElementById("log-note");
  const MOST_ROWS = 20000;
  const FAR_BEHIND = 2 ** 20;
  let etag = "";
  let failures = 0;
  let timer = 0;

  const pause = () => Math.min(30000, (/^(running|canceling)$/.test(log.dataset.status) ? 1500 : 4000) * 2 ** failures);

  // A <div data-continues> holds the next content of a section that is still open on the page.
  function append(target, part) {
    for (const node of [...part.childNodes]) {
      if (node.nodeType === Node.ELEMENT_NODE && "continues" in node.dataset) {
        const section = target.lastElementChild.querySelector(":scope > details");
        append(section, node);
        if (node.dataset.took) section.querySelector(":scope > summary > .took").textContent = node.dataset.took;
      } else {
        target.append(node);
      }
    }
  }

  function add(part) {
    const follows = end.getBoundingClientRect().top <= window.innerHeight;
    log.querySelector("[data-unfinished]")?.remove();
    append(log, part);
    for (const name of ["next", "size", "state", "status"]) log.dataset[name] = part.dataset[name];
    if ("done" in part.dataset) log.dataset.done = "";
    document.getElementById("log-none")?.remove();
    const rows = log.getElementsByClassName("row");
    while (rows.length > MOST_ROWS && log.childElementCount > 1) log.firstElementChild.remove();
    if (follows) end.scrollIntoView({ block: "end" });
  }

  // The facts and buttons of a job depend on its status.
  async function refreshFacts() {
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("job");
    const old = document.getElementById("job");
    if (!fresh || old.contains(document.activeElement) && document.activeElement.matches("input, textarea")) return;
    old.replaceWith(document.adoptNode(fresh));
  }

  async function ask() {
    const before = log.dataset.status;
    const answer = await fetch(`${log.dataset.url}?state=${encodeURIComponent(log.dataset.state)}`, {
      cache: "no-store",
      headers: { Range: `log=${log.dataset.next}-`, ...(etag && { "If-None-Match": etag }) },
    });
    if (answer.status === 304) return;
    if (answer.redirected || answer.status === 416) return location.reload();
    if (answer.status !== 206) throw new Error(`status ${answer.status}`);
    etag = answer.headers.get("ETag");
    const part = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("log");
    if (part.dataset.size - part.dataset.next > FAR_BEHIND) return location.reload();
    add(document.adoptNode(part));
    if (log.dataset.status !== before) await refreshFacts();
  }

  async function follow() {
    timer = 0;
    try {
      await ask();
      failures = 0;
      note.textContent = "";
    } catch (error) {
      failures += 1;
      note.textContent = "The service does not answer. Trying again.";
    }
    schedule();
  }

  function schedule() {
    if (timer || document.hidden || "done" in log.dataset) return;
    timer = setTimeout(follow, pause());
  }

  document.addEventListener("visibilitychange", schedule);
  schedule();
})();
