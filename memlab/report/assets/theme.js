// Light or dark theme: the system's until the reader chooses one. Charts are redrawn after a change.

const systemDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
let printing = false;

const isDark = () => !printing && (chosenTheme === null ? systemDark.matches : chosenTheme === "dark");

function applyTheme() {
  document.documentElement.style.colorScheme = chosenTheme ?? "light dark";
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  document.dispatchEvent(new Event("themechange"));
}

const colorOf = (configuration) => (isDark() ? configuration.dark : configuration.color);

byId("theme").addEventListener("click", () => {
  chosenTheme = isDark() ? "light" : "dark";
  applyTheme();
});
systemDark.addEventListener("change", applyTheme);
for (const [event, value] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    printing = value;
    applyTheme();
  });
}
