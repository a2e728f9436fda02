// The button that switches between light and dark.
function startTheme() {
  const root = document.documentElement;
  const system = window.matchMedia('(prefers-color-scheme: dark)');
  const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : system.matches);
  const show = () => { byId('theme').textContent = isDark() ? '☀ Light' : '☾ Dark'; };
  try { root.dataset.theme = localStorage.getItem('jurygcn-theme') ?? ''; } catch { /* storage may be disabled */ }
  byId('theme').addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    try { localStorage.setItem('jurygcn-theme', root.dataset.theme); } catch { /* then the choice is not saved */ }
    show();
  });
  system.addEventListener('change', show);
  show();
}
