// The menu to save a run.

import { make, within } from "./dom.js";

/** Offer the run that is shown for downloading, where there is a server. */
export function addSaveMenu(stage) {
  const { element } = stage;
  const $ = within(element);
  const save = $(".save");
  save.hidden = !stage.server;
  const shut = () => (save.open = false);
  document.addEventListener("click", ({ target }) => save.contains(target) || shut());
  save.addEventListener("keydown", (event) => {
    if (event.key === "Tab") setTimeout(() => save.contains(document.activeElement) || shut()); // the focus moves later
    if (event.key !== "Escape" || !save.open) return;
    event.stopPropagation(); // the key is meant for the menu, not for the run
    shut();
    $(".save summary").focus();
  });
  for (const button of element.querySelectorAll("[data-save]")) {
    button.onclick = async () => {
      shut();
      const answer = await stage.server.take_away([stage.picture.id, button.dataset.save]).catch(() => undefined);
      const { problem, name, type, text } = answer ?? { problem: "The server does not answer. Is it still running? The run stays here: try again." };
      if (problem) return stage.sayNow(problem, true);
      const link = make("a");
      link.download = name;
      link.href = URL.createObjectURL(new Blob([text], { type }));
      link.click();
      URL.revokeObjectURL(link.href);
    };
  }
}
