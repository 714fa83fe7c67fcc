// The texts of the scripts in the language of the page: a page in another language than English has
// them as JSON, by the English text. Values stand in a text as %(name)s.

const given = document.getElementById("script-texts");
const texts = given ? JSON.parse(given.textContent) : {};

export function _(text, values = {}) {
  return (texts[text] ?? text).replace(/%\((\w+)\)s/g, (whole, name) => values[name] ?? whole);
}

// Marks a text that is translated where it is shown.
export const N_ = (text) => text;
