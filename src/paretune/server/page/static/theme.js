// The theme that was chosen, set before anything is drawn: a classic script in the head, so that no page flashes white.
// It is the only thing that the page keeps in the browser.
(() => {
  "use strict";
  let kept = null;
  try {
    kept = localStorage.getItem("paretune-theme");
  } catch {
    // storage is switched off: the system's theme it is
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
