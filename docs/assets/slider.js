// The slider of alpha on the first page. Its data stand in the page, so that it works from a file.
(() => {
  const root = document.getElementById("slider");
  if (!root) return;
  const data = JSON.parse(document.getElementById("slider-data").textContent);
  const make = (tag, text = "", attributes = {}) => {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const number = (score) => String(score).replace("-", "−");
  const percent = (share) => `${+(100 * share).toFixed(1)} %`;

  const alpha = make("input", "", {
    type: "range", id: "alpha", min: 0, max: data.alphas.length - 1, value: 9,
  });
  const label = make("label", "", { for: "alpha" });
  const chart = make("div");
  const figures = make("dl", "", { "aria-live": "polite" });
  const question = make("select", "", { id: "question" });
  data.questions.forEach((q, i) => question.append(make("option", q.question, { value: i })));
  const summary = make("p", "", { "aria-live": "polite" });
  const list = make("ol");
  root.replaceChildren(
    label, alpha, figures, chart, make("label", "A held-out question", { for: "question" }),
    question, summary, list,
  );

  const curve = (field) => data.alphas.map((row, i) =>
    `${(i / (data.alphas.length - 1)) * 400},${100 - 100 * row[field]}`).join(" ");
  chart.innerHTML = `<svg viewBox="-4 -4 408 108" role="img" aria-label="Relevant snippets kept and
    all snippets dropped, from 0 to 100 %, over alpha from 0.01 to 0.5">
    <path class="axis" d="M0 0V100H400"/><polyline class="kept" points="${curve("kept")}"/>
    <polyline class="dropped" points="${curve("removed")}"/><line class="now" y1="0" y2="100"/></svg>
    <p><span class="kept">relevant snippets kept</span>
    <span class="dropped">all snippets dropped</span> 0 to 100 %, over α from 0.01 to 0.5</p>`;
  const now = chart.querySelector(".now");

  const draw = () => {
    const row = data.alphas[alpha.value];
    const asked = data.questions[question.value];
    label.textContent = `α = ${row.alpha}`;
    alpha.setAttribute("aria-valuetext", label.textContent);
    now.setAttribute("x1", (alpha.value / (data.alphas.length - 1)) * 400);
    now.setAttribute("x2", now.getAttribute("x1"));
    figures.replaceChildren(...[
      ["Guaranteed, of a question's relevant snippets", `≥ ${percent(1 - row.alpha)}`],
      [`Kept of them, over ${data.held_out.length} held-out questions`, row.coverage],
      ["Dropped of all snippets", row.removal],
    ].flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
    const kept = asked.scores.filter((score) => score <= row.threshold).length;
    summary.textContent = `Keeps ${kept} of ${asked.n} retrieved snippets: those with a score of at ` +
      `most ${number(row.threshold)}. Shown are all relevant snippets and every fourth:`;
    list.replaceChildren(...asked.snippets.map((snippet) => {
      const passes = snippet.score <= row.threshold;
      const outcome = passes ? "kept" : snippet.relevant ? "lost" : "dropped";
      const item = make("li", "", { class: outcome });
      item.append(
        make("strong", outcome + (snippet.relevant ? ", relevant" : "")),
        make("code", snippet.document), make("span", `score ${number(snippet.score)}`),
        make("p", snippet.text),
      );
      return item;
    }));
  };
  alpha.addEventListener("input", draw);
  question.addEventListener("input", draw);
  draw();
})();
