// Copy buttons of console blocks copy the commands without the prompt, the comment about what they need, and the output.
document.addEventListener('click', (event) => {
    const button = event.target.closest('.clip-button');
    const code = button && button.closest('pre').querySelector('code.language-console');
    if (!code) return;
    const commands = code.textContent.split('\n').filter((line) => line.startsWith('$ '));
    const text = commands.map((line) => line.slice(2).replace(/\s+# needs .*$/, '')).join('\n');
    if (!text) return;
    event.stopPropagation();
    navigator.clipboard.writeText(text);
}, true);
