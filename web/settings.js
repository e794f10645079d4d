// What the user has chosen, kept in this browser; and the requests that carry the API key.

const STORE = 'expert-split settings';
const NUMBERS = ['temperature', 'top_p', 'max_tokens', 'seed'];

function read() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

let chosen = read();

function applyTheme() {
  if (chosen.theme) document.documentElement.dataset.theme = chosen.theme;
  else delete document.documentElement.dataset.theme;
  document.dispatchEvent(new Event('themechange'));
}

export function settings() {
  return chosen;
}

// Fields of a chat request that the settings give.
export function requestFields() {
  const fields = {};
  for (const name of NUMBERS) {
    if (chosen[name] !== undefined && chosen[name] !== '') fields[name] = Number(chosen[name]);
  }
  if (chosen.thinking !== undefined) {
    fields.chat_template_kwargs = {enable_thinking: chosen.thinking};
  }
  return fields;
}

export function request(path, options = {}) {
  const headers = {...options.headers};
  if (chosen.api_key) headers.Authorization = `Bearer ${chosen.api_key}`;
  return fetch(path, {...options, headers});
}

const dialog = document.getElementById('settings');
const form = dialog.querySelector('form');

document.getElementById('open-settings').addEventListener('click', () => {
  for (const field of form.elements) {
    if (!field.name) continue;
    if (field.type === 'checkbox') field.checked = chosen[field.name] ?? true;
    else field.value = chosen[field.name] ?? '';
  }
  dialog.returnValue = 'cancel';
  dialog.showModal();
});

dialog.addEventListener('close', () => {
  if (dialog.returnValue !== 'save') return;
  chosen = {};
  for (const field of form.elements) {
    if (field.name) chosen[field.name] = field.type === 'checkbox' ? field.checked : field.value;
  }
  try {
    localStorage.setItem(STORE, JSON.stringify(chosen));
  } catch {
    // A browser that keeps nothing still has them until the page is closed.
  }
  applyTheme();
});

applyTheme();
