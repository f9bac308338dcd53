/* A listing that is wider than its column can be scrolled with the keyboard. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll("pre, .table-wrapper, .scrolls, div.math")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
