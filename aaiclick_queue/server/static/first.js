// Runs before the first paint: the theme that was chosen, and that scripts run at all.
(function () {
  var root = document.documentElement;
  root.classList.add("js");
  try {
    var theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch (refused) { /* storage may be forbidden: the system's theme then */ }
})();
