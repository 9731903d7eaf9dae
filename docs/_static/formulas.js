// Formulas, once they are set: one that is too wide becomes smaller, as far as it stays legible, and a full stop stays with the formula before it.
const smallest = 0.62;
function fitFormulas() {
  for (const formula of document.querySelectorAll("article mjx-container")) {
    const box = formula.parentElement, inline = box.tagName === "SPAN";
    const width = formula.querySelector("mjx-math").getBoundingClientRect().width, room = (inline ? box : formula).clientWidth;
    if (width > room + 1) {
      const size = parseFloat(getComputedStyle(formula).fontSize) * Math.max(smallest, room / width - 0.01);
      formula.style.setProperty("font-size", `${size}px`, "important"); // site.css sets a size of its own on phones
    }
    const next = box.nextSibling;
    const marks = inline && next?.nodeType === Node.TEXT_NODE && next.data.match(/^[.,;:!?)\]’”]+/);
    if (!marks || width + 12 > box.closest("p, li, td, th, dd, div").clientWidth) continue;
    const together = document.createElement("span");
    together.style.whiteSpace = "nowrap";
    box.before(together);
    together.append(box, marks[0]);
    next.data = next.data.slice(marks[0].length);
  }
}
window.addEventListener("load", () => window.MathJax?.startup?.promise?.then(fitFormulas));
