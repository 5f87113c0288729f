"use strict";
{
  const byId = (id) => document.getElementById(id);

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = (isDark) => { document.documentElement.dataset.theme = isDark ? "dark" : "light"; };
  paint(dark.matches);
  dark.addEventListener("change", () => paint(dark.matches));
  byId("theme").addEventListener("click", () => paint(document.documentElement.dataset.theme !== "dark"));

  for (const button of document.querySelectorAll(".enlarge")) {
    button.addEventListener("click", () => {
      const image = button.querySelector("img"), dialog = byId("large"), enlarged = dialog.querySelector("img");
      enlarged.src = image.src;
      enlarged.alt = image.alt;
      enlarged.className = image.className;
      dialog.querySelector("p").textContent = image.alt;
      dialog.showModal();
    });
  }
  for (const box of document.querySelectorAll(".filter input")) {
    box.addEventListener("input", () => {
      for (const row of box.closest(".config").querySelectorAll("tbody tr"))
        row.hidden = !row.textContent.toLowerCase().includes(box.value.toLowerCase());
    });
  }
  const unfold = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();
}
