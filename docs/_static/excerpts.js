// What a search result quotes: the article alone, without the buttons above it, which the search of Sphinx takes along.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    page.querySelectorAll(".headerlink, script, style").forEach((element) => element.remove());
    return ((anchor && page.querySelector(`article ${anchor}`)) || page.querySelector("article"))?.textContent.trim() ?? "";
  };
});
