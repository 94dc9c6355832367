// A page with no server behind it: parts of the lab's pages, each a function of (element, props, trigger, server,
// watch) as Gradio would call it, brought to life on elements that are there.

const parts = {};

document.body.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);

/** Bring a part to life. ``trigger(event, detail)`` is told what a person asks for. Returns the function that gives the
    part its value, which the server would. */
function mount(name, element, trigger = () => {}) {
  const props = { value: "" };
  let changed = () => {};
  parts[name](element, props, trigger, null, (_, listen) => (changed = listen));
  return (value) => {
    props.value = value;
    changed();
  };
}
