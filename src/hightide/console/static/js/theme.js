// Sets the chosen theme before the page is drawn, so that it does not flash. A classic script: modules run later.
(() => {
  try {
    const theme = localStorage.getItem("hightide.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Without storage the system's theme holds.
  }
})();
