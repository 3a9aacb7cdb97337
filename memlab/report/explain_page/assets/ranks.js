// All ranks of a run by phase, and the memory of their host. Ranks without a history have these figures, too.

const FIGURES = {
  peak_allocated_bytes: "peak of allocated memory",
  peak_reserved_bytes: "peak of reserved memory",
  end_allocated_bytes: "allocated at the end of the phase",
  used_bytes: "memory in use on the device",
  host_peak_bytes: "peak of the process on the host",
};
const HOST = {
  host_peak_bytes: "peak of the process",
  host_rss_bytes: "process at the end of the run",
  host_pinned_bytes: "peak of page-locked memory",
};
let figure = "peak_allocated_bytes";

const known = (ranks, phases, key) => ranks.some((rank) => phases.some((phase) => rank.phases[phase]?.[key] != null));

function showRanks({ history }) {
  const { ranks, phases } = DATA.runs[history.run];
  const keys = Object.keys(FIGURES).filter((key) => known(ranks, phases, key));
  if (!keys.includes(figure)) figure = keys[0];
  const select = h("select", { id: "figure", onchange: () => {
    figure = select.value;
    showRanks({ history });
  } }, ...keys.map((key) => h("option", { value: key, selected: key === figure }, FIGURES[key])));
  byId("heat-controls").replaceChildren(h("label", {}, "GiB: ", select));
  byId("heat").replaceChildren(keys.length ? heatMap(ranks, phases, history.rank) : "No rank has figures by phase.");
  byId("host").replaceChildren(hostTable(ranks, phases));
}

function heatMap(ranks, phases, shown) {
  const values = ranks.flatMap((rank) => phases.map((phase) => rank.phases[phase]?.[figure] ?? 0));
  const most = Math.max(1, ...values);
  const rows = ranks.map((rank) => {
    const same = rank.same_as_rank === null ? "" : ` (as rank ${rank.same_as_rank})`;
    const cells = phases.map((phase) => {
      const bytes = rank.phases[phase]?.[figure];
      const isHighest = bytes === most;
      const cell = h("td", { className: `number heat${isHighest ? " highest" : ""}`, title: bytes == null ? "" : `${partName({ phase })}, rank ${rank.rank}: ${WHOLE.format(bytes)} bytes` }, bytes == null ? DASH : gib(bytes));
      cell.style.setProperty("--share", `${(70 * (bytes ?? 0)) / most}%`);
      return cell;
    });
    return h("tr", { className: rank.rank === shown ? "picked" : "" }, h("th", { scope: "row" }, `rank ${rank.rank}${same}`), ...cells);
  });
  const head = h("tr", {}, h("th", { scope: "col" }, ""), ...phases.map((phase) => h("th", { scope: "col", className: "number" }, ...breakable(phase))));
  return h("table", { className: "heat-map" }, h("thead", {}, head), h("tbody", {}, ...rows));
}

/** Lets a name break behind its underscores. */
const breakable = (name) => name.split(/(?<=_)/).flatMap((part) => [part, h("wbr")]);

function hostTable(ranks, phases) {
  const keys = Object.keys(HOST).filter((key) => ranks.some((rank) => rank[key] != null));
  const byPhase = phases.filter((phase) => ranks.some((rank) => rank.phases[phase]?.host_peak_bytes != null));
  if (!keys.length && !byPhase.length) return h("p", {}, "The host's memory is not known.");
  const most = Math.max(1, ...ranks.flatMap((rank) => [rank.host_peak_bytes ?? 0, ...byPhase.map((phase) => rank.phases[phase]?.host_peak_bytes ?? 0)]));
  const cell = (bytes) => {
    if (bytes == null) return DASH;
    const found = h("span", { className: "barred" }, size(bytes));
    found.style.setProperty("--share", `${(100 * bytes) / most}%`);
    return found;
  };
  const head = ["rank", ...keys.map((key) => HOST[key]), ...byPhase.map((phase) => `peak in ${phase}`)];
  return table("", head, ranks.map((rank) => [String(rank.rank), ...keys.map((key) => cell(rank[key])), ...byPhase.map((phase) => cell(rank.phases[phase]?.host_peak_bytes))]));
}
