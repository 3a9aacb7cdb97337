// Builds the page from top to bottom; charts are drawn last, when the rest can be read.

byId("title").textContent = DATA.title;
byId("footer").textContent = `memlab ${DATA.version}. Everything on this page is in this file; it loads nothing.`;
showSummary();
showLeaderboard();
makeTable();
makePicker();
showDiff();
applyTheme();
requestAnimationFrame(() => setTimeout(() => {
  makeCharts();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}));
