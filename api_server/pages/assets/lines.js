// Marks the lines that the address names (#L12, #L10-20) and scrolls to the first. A click on a number with the shift
// key selects a range of lines.
"use strict";
(() => {
  const range = () => {
    const named = /^#L(\d+)(?:-L?(\d+))?$/.exec(location.hash);
    if (!named) return null;
    const [first, last] = [Number(named[1]), Number(named[2] ?? named[1])];
    return [Math.min(first, last), Math.max(first, last)];
  };
  const row = (number) => document.getElementById(`L${number}`)?.closest(".row");

  function mark() {
    for (const each of document.querySelectorAll(".row.chosen")) each.classList.remove("chosen");
    const lines = range();
    if (!lines) return;
    for (let number = lines[0]; number <= lines[1] && row(number); number++) row(number).classList.add("chosen");
    if (lines[1] > lines[0]) row(lines[0])?.scrollIntoView();
  }

  document.addEventListener("click", (event) => {
    const number = event.target.closest?.(".row > .number");
    const lines = range();
    if (!number || !event.shiftKey || !lines) return;
    event.preventDefault();
    const clicked = Number(number.id.slice(1));
    location.hash = `L${Math.min(lines[0], clicked)}-${Math.max(lines[0], clicked)}`;
  });
  addEventListener("hashchange", mark);
  mark();
})();
