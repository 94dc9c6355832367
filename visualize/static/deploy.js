// Draws the Deploy page's answer (visualize/vllm/deploy_sheet.py): texts as text.
// Gradio runs this once, as a function of (element, props, watch, ...), after elements.js and sheet.js.

function read(value) {
  if (!value) return;
  const sheet = JSON.parse(value);
  $(".sheet-say").textContent = sheet.command ? sheet.say : before(sheet.say, $(".serve").textContent);
  $(".sheet-say").classList.toggle("problem", Boolean(sheet.problem));
  $(".sheet").classList.toggle("stale", !sheet.command);
  if (!sheet.command) return;
  $(".serve").textContent = sheet.command;
  $("tbody").replaceChildren(...sheet.splits.map(row));
  $(".splits").hidden = !sheet.splits.length;
  const said = sheet.differences.length ? sheet.differences : ["Nothing: every setting has its flag."];
  $("ul").replaceChildren(...said.map((text) => make("li", "", text)));
}

function row({ gpus, weights, token, left, sequences, holds, chosen }) {
  const line = make("tr", chosen ? "chosen" : "");
  const head = make("th", "", gpus);
  head.scope = "row";
  const verdict = make("td", holds ? "holds" : "fails", holds ? "✓ enough" : "✗ too few");
  line.append(head, ...[weights, token, left, sequences].map((text) => make("td", "", text)), verdict);
  return line;
}

for (const button of element.querySelectorAll(".copy")) {
  button.onclick = async () => {
    const code = button.closest(".panel").querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // without permission, or over plain http to another machine: select it, to be copied by hand
      getSelection().selectAllChildren(code);
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  };
}

watch("value", () => read(props.value));
read(props.value);
