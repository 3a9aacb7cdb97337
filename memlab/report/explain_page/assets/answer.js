// The answer in words, before all pictures: as the terminal prints it.

function showAnswer() {
  const [lead, ...more] = DATA.difference;
  const runs = DATA.runs.map((run) => (lead ? h("details", {}, h("summary", {}, run.name), ...answerOf(run)) : answerOf(run))).flat();
  byId("summary").append(...(lead ? [h("p", { className: "answer" }, lead), ...paragraphs(more)] : []), ...runs);
}

function answerOf({ problems, answer: { failure, sentences, findings, phases } }) {
  const [answer, ...why] = sentences;
  return [
    ...problems.map((text) => h("p", { className: "care" }, text)),
    ...(failure ? failureOf(failure) : []),
    h("p", { className: "answer" }, answer),
    ...paragraphs(why),
    ...(findings.length ? [h("h3", {}, "Findings"), h("ul", {}, ...findings.map((text) => h("li", {}, text)))] : []),
    ...(DATA.remedies ? remediesOf(DATA.remedies) : []),
    ...(phases.rows.length ? [h("h3", {}, "Phases"), textTable(phases)] : []),
  ];
}

function failureOf({ sentences, before, held }) {
  return [...sentences.map((text) => h("p", { className: "answer failure" }, text)), textTable(before), ...(held ? [textTable(held)] : [])];
}

function remediesOf({ answer, provenance, changes, not_tried: rest }) {
  const items = changes.map(({ effect, details }) => h("li", {}, effect, ...details.map((text) => h("div", { className: "hint" }, text))));
  return [h("h3", {}, answer), ...paragraphs([provenance]), h("ul", { className: "remedies" }, ...items), ...paragraphs(rest ? [rest] : [])];
}

const paragraphs = (texts) => texts.map((text) => h("p", {}, text));

/** Makes a table of texts: `numbers` are the columns that are aligned to the right. */
function textTable({ head, rows, numbers }) {
  const line = (tag, cells) => h("tr", {}, ...cells.map((text, at) => h(tag, { className: numbers.includes(at) ? "number" : "" }, text)));
  const found = h("table", {}, h("thead", {}, line("th", head)), h("tbody", {}, ...rows.map((row) => line("td", row))));
  return h("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: head[0] }, found);
}
