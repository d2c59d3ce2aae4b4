// What the theme leaves out for readers without a mouse or a screen: a name for the search, and
// tables that are scrolled by keys.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
addEventListener("load", () =>
  setTimeout(() => {
    const wide = ".md-typeset__scrollwrap, .highlight pre > code, .highlight-ipynb, .highlight-ipynb pre, .jp-OutputArea-output";
    document.querySelectorAll(wide).forEach((one) => (one.tabIndex = 0));
    const copied = document.querySelectorAll(".md-code__nav");
    copied.forEach((one, place) => one.setAttribute("aria-label", `Code ${place + 1}`));
  }),
);
