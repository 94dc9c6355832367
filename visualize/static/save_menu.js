// What surrounds the stage: light and dark, and downloading a run.

onLook(() => {
  relook();
  charts.forEach((name) => dirty.add(name));
  schedule();
});

// -- downloading a run -------------------------------------------------------------------------------

const save = $(".save");
save.hidden = !server;
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
    const answer = await server.take_away([picture.id, button.dataset.save]).catch(() => undefined);
    const { problem, name, type, text } = answer ?? { problem: "The server does not answer. Is it still running? The run stays here: try again." };
    if (problem) return sayNow(problem, true);
    const link = make("a");
    link.download = name;
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.click();
    URL.revokeObjectURL(link.href);
  };
}
