// What surrounds the stage: light and dark, keys, and taking a run away.

let worn = look();
new MutationObserver(() => {
  if (look() === worn) return;
  worn = look();
  relook();
  charts.forEach((name) => dirty.add(name));
  schedule();
}).observe(body, { attributes: true, attributeFilter: ["class"] });

// -- taking a run away -------------------------------------------------------------------------------

$(".save").hidden = !server;
for (const button of element.querySelectorAll("[data-save]")) {
  button.onclick = async () => {
    $(".save").open = false;
    const { problem, name, type, text } = await server.take_away([picture.id, button.dataset.save]);
    if (problem) return sayNow(problem, true);
    const link = make("a");
    link.download = name;
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.click();
    URL.revokeObjectURL(link.href);
  };
}
