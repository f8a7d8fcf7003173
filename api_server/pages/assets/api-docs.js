// Replaces the list of operations with Swagger UI.
const description = document.getElementById('api-description')
const dark = window.matchMedia('(prefers-color-scheme: dark)')
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches)
dark.addEventListener('change', follow)
follow()
window.SwaggerUIBundle({
  domNode: description,
  url: description.dataset.url,
  deepLinking: true,
  docExpansion: 'none',
  defaultModelsExpandDepth: -1,
  filter: true,
  tryItOutEnabled: true,
  syntaxHighlight: false,
  validatorUrl: null,
  queryConfigEnabled: false,
  onComplete: () => document.getElementById('operations').remove()
})
