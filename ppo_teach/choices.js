// A question with answers to choose from (or a line to write in): quizzes and predictions.

const CSS = `.ppo-ask { box-sizing: border-box; max-width: 900px; padding: 12px 14px; background: #fff; color: #1a1a1a;
  border: 1px solid #d9d9d9; border-radius: 8px; font: 15px/1.45 system-ui, sans-serif; color-scheme: light; }
.ppo-ask p { margin: 0 0 8px; font-weight: 600; }
.ppo-ask button { display: block; width: 100%; margin: 5px 0; padding: 7px 12px; text-align: left; font: inherit;
  background: #fff; color: inherit; border: 1px solid #8c8c8c; border-radius: 6px; cursor: pointer; }
.ppo-ask button:hover { border-color: #0072B2; box-shadow: 0 0 0 1px #0072B2; }
.ppo-ask :is(button, input):focus-visible { outline: 3px solid #E69F00; outline-offset: 1px; }
.ppo-ask [aria-pressed=true] { border: 2px solid #0072B2; padding: 6px 11px; background: #eaf3f9; }
.ppo-ask [aria-pressed=true][data-right=true] { border-color: #00795A; background: #e6f4ef; }
.ppo-ask [aria-pressed=true][data-right=false] { border-color: #B34F00; background: #fbeee6; }
.ppo-ask input { font: inherit; padding: 5px 10px; border: 1px solid #8c8c8c; border-radius: 6px; }
.ppo-ask [role=status]:not(:empty) { margin-top: 8px; padding: 7px 12px; border-left: 4px solid #0072B2;
  background: #f3f6f9; }`;

const write = (el, text) => text.split("`").forEach((part, i) => { // text only, `code` between backticks
  if (i % 2) el.appendChild(document.createElement("code")).textContent = part; else el.append(part);
});

function render({ model, el }) {
  const add = (tag, parent, text = "", attributes = {}) => {
    const made = parent.appendChild(document.createElement(tag));
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    write(made, text);
    return made;
  };
  const quiet = { "data-lm-suppress-shortcuts": "true" }; // JupyterLab would take Enter and letters for itself
  const question = model.get("question");
  const root = add("div", el, "", { class: "ppo-ask", role: "group", "aria-label": question });
  add("style", root).textContent = CSS;
  add("p", root, question);
  const give = (text) => { model.set("given", text); model.save_changes(); show(); };
  const options = model.get("options"), buttons = options.map(({ text, right }) => {
    const verdict = right === undefined ? {} : { "data-right": right };
    const button = add("button", root, text, { type: "button", ...quiet, ...verdict });
    button.addEventListener("click", () => give(text));
    return button;
  });
  const field = { "aria-label": "Your guess", placeholder: "your guess", ...quiet };
  const input = options.length ? null : add("input", root, "", field);
  input?.addEventListener("change", () => give(input.value));
  input?.addEventListener("keydown", ({ key }) => { if (key === "Enter") give(input.value); }); // Lab stops its change
  const said = add("div", root, "", { role: "status", "aria-live": "polite" });
  function show() {
    const given = model.get("given"), at = options.findIndex(({ text }) => text === given);
    const { feedback, right } = options[at] || {};
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === at));
    said.replaceChildren();
    if (feedback) write(said, `${right ? "✓ Right." : "✗ Not quite."} ${feedback}`);
    else if (given) said.append(`Your guess is noted: ${given}`);
    if (input) input.value = given;
  }
  model.on("change:given", show);
  show();
}

export default { render };
