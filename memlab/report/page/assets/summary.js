// Top of the page: the answer, the findings in sentences, and their tables.

const LEADERS = 12; // rows on a page of the leaderboard
const ROWS = 20;

const TABLES = [
  ["fits", "Memory over tokens, and the tokens that fit", "Reserved memory of the largest rank over tokens (batch x sequence length), for each configuration. The tokens that fit keep 5 % of the memory free."],
  ["effects", "Effects of each axis", "All pairs of runs that differ in only one axis."],
  ["notes", "Notes on single points", "Incomplete, doubtful and skipped runs."],
];

function showSummary() {
  byId("answer").textContent = DATA.answer;
  for (const { title, sentences } of DATA.sections) {
    const care = title === "Read with care";
    byId("learned").append(h("div", { className: care ? "block care" : "block" }, h("h3", {}, title), h("ul", {}, ...sentences.map((text) => h("li", {}, text)))));
  }
}

function showLeaderboard() {
  const usual = Object.entries(DATA.usual).map(([group, option]) => `${group}=${option}`).join(" ");
  const hint = "The fastest point of each configuration; where no speed is known, its largest.";
  byId("leaderboard").append(
    h("p", { className: "hint" }, hint, usual ? " Names omit the usual options: " : "", usual ? h("code", {}, usual) : null),
    findingTable("leaders", "Leaderboard", DATA.tables.leaderboard, LEADERS),
  );
  for (const [key, title, hint] of TABLES) {
    const rows = DATA.tables[key].rows;
    if (!rows.length) continue;
    const content = [h("p", { className: "hint" }, hint), findingTable(key, title, DATA.tables[key], ROWS)];
    byId("leaderboard").append(h("details", {}, h("summary", {}, `${title} (${WHOLE.format(rows.length)})`), ...content));
  }
}
