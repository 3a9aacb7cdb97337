// What was learned, in sentences, and the table of effects.

function showSummary() {
  const section = byId("summary");
  for (const { title, sentences } of DATA.sections) {
    const care = title === "Read with care";
    section.append(h("div", { className: care ? "block care" : "block" }, h("h3", {}, title), h("ul", {}, ...sentences.map((text) => h("li", {}, text)))));
  }
  if (!DATA.effects.length) return;
  const rows = DATA.effects.map((each) => [
    each.axis,
    each.options,
    each.figure,
    write("share", each.lowest),
    write("share", each.median),
    write("share", each.highest),
    String(each.pairs),
    each.noise === null ? "unknown" : `${each.noise}`,
  ]);
  const head = ["axis", "from \u2192 to", "figure", "lowest", "median", "highest", "pairs", "within noise"];
  const found = table("Runs that differ in one axis alone, pair by pair", head, rows, 3);
  section.append(h("details", { open: rows.length <= 16 }, h("summary", {}, "Effects of each axis"), h("div", { className: "scroll" }, found)));
}
