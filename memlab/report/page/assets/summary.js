// What was learned, in sentences, and the table of effects.

function showSummary() {
  const section = byId("summary");
  for (const { title, sentences } of DATA.sections) {
    const care = title === "Read with care";
    section.append(h("div", { className: care ? "block care" : "block" }, h("h3", {}, title), h("ul", {}, ...sentences.map((text) => h("li", {}, text)))));
  }
  showFits(section);
  showEffects(section);
}

function showFits(section) {
  if (!DATA.fits.length) return;
  const rows = DATA.fits.map((fit) => [
    fit.label,
    fit.equation,
    fit.note,
    fit.r2.toFixed(4),
    String(fit.points),
    fit.error === null ? DASH : `${(100 * fit.error).toFixed(1)} %`,
    fit.tokens === null ? DASH : fit.tokens.toLocaleString("en-US"),
  ]);
  const head = ["configuration", "peak reserved", "note", "R\u00b2", "points", "error, leaving one out", "tokens of one forward that fit"];
  const found = table("The largest rank's memory over tokens (batch x sequence length); what fits keeps 5 % free", head, rows, 3);
  section.append(h("details", { open: rows.length <= 12 }, h("summary", {}, "Fits"), h("div", { className: "scroll" }, found)));
}

function showEffects(section) {
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
