// What a narrow screen needs to know, said by classes: which tables hold sentences, which pictures hold panels side by side.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table:not(.indextable)")) {
    const heads = [...table.querySelectorAll("thead tr:last-child th")].map((head) => head.textContent.trim());
    const rows = [...table.querySelectorAll("tbody tr")];
    if (heads.length < 3 || !rows.some((row) => [...row.cells].some((cell) => cell.textContent.length > 40))) continue;
    table.classList.add("cards");
    for (const row of rows) [...row.cells].forEach((cell, i) => { if (i && heads[i] && cell.textContent.trim()) cell.dataset.label = heads[i]; });
  }
  for (const image of document.querySelectorAll("article p > img, article .cell_output img")) {
    const mark = () => { if (image.naturalWidth > Math.max(600, 1.2 * image.naturalHeight)) image.parentElement.classList.add("wide-picture"); };
    image.complete ? mark() : image.addEventListener("load", mark);
  }
});
