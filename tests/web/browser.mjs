// Headless Chromium through its DevTools protocol.
import {spawn} from 'node:child_process';
import {mkdtemp, readFile, rm, writeFile} from 'node:fs/promises';
import {tmpdir} from 'node:os';
import {join} from 'node:path';

import {eventually} from './server.mjs';

export class Browser {
  static async start() {
    const folder = await mkdtemp(join(tmpdir(), 'expert-split-chromium-'));
    const child = spawn('chromium', ['--headless=new', '--no-sandbox', '--disable-gpu',
                                     '--disable-dev-shm-usage', '--remote-debugging-port=0',
                                     `--user-data-dir=${folder}`, 'about:blank'],
                        {stdio: 'ignore'});
    const file = join(folder, 'DevToolsActivePort');
    const port = await eventually(async () => {
      const text = await readFile(file, 'utf8').catch(() => '');
      return text.includes('\n') ? text.split('\n')[0] : null;
    }, 'Chromium listens');
    const pages = await (await fetch(`http://127.0.0.1:${port}/json/list`)).json();
    const socket = new WebSocket(pages.find((page) => page.type === 'page').webSocketDebuggerUrl);
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onerror = reject;
    });
    return new Browser(child, folder, socket);
  }

  constructor(child, folder, socket) {
    this.child = child;
    this.folder = folder;
    this.socket = socket;
    this.next = 1;
    this.waiting = new Map();
    this.problems = [];  // what pages report as errors
    socket.onmessage = ({data}) => {
      const message = JSON.parse(data);
      if (message.method === 'Runtime.exceptionThrown') {
        this.problems.push(message.params.exceptionDetails.exception?.description ?? 'exception');
      }
      if (message.method === 'Log.entryAdded' && message.params.entry.level === 'error') {
        this.problems.push(message.params.entry.text);
      }
      const {resolve, reject} = this.waiting.get(message.id) ?? {};
      this.waiting.delete(message.id);
      if (message.error) reject?.(new Error(message.error.message));
      else resolve?.(message.result);
    };
  }

  call(method, params = {}) {
    const id = this.next++;
    this.socket.send(JSON.stringify({id, method, params}));
    return new Promise((resolve, reject) => this.waiting.set(id, {resolve, reject}));
  }

  async open(address) {
    for (const domain of ['Page', 'Runtime', 'Log']) await this.call(`${domain}.enable`);
    await this.call('Page.navigate', {url: address});
    await eventually(() => this.evaluate('document.readyState === "complete"'), 'the page loads');
  }

  async evaluate(expression) {
    const {result, exceptionDetails} = await this.call(
        'Runtime.evaluate', {expression, returnByValue: true, awaitPromise: true});
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description}`);
    return result.value;
  }

  // Types as a keyboard does, into whatever has the focus.
  type(text) {
    return this.call('Input.insertText', {text});
  }

  async press(key, code = key) {
    const codes = {Enter: 13, Escape: 27, ArrowRight: 39, ArrowDown: 40, Tab: 9};
    const event = {key, code, windowsVirtualKeyCode: codes[key], text: key === 'Enter' ? '\r' : undefined};
    await this.call('Input.dispatchKeyEvent', {type: 'keyDown', ...event});
    await this.call('Input.dispatchKeyEvent', {type: 'keyUp', ...event});
  }

  async resize(width, height, dark = false) {
    await this.call('Emulation.setDeviceMetricsOverride',
                    {width, height, deviceScaleFactor: 1, mobile: width < 600});
    await this.call('Emulation.setEmulatedMedia',
                    {features: [{name: 'prefers-color-scheme', value: dark ? 'dark' : 'light'}]});
  }

  async screenshot(path) {
    const {data} = await this.call('Page.captureScreenshot', {format: 'png'});
    await writeFile(path, Buffer.from(data, 'base64'));
  }

  async stop() {
    this.socket.close();
    this.child.kill('SIGKILL');
    await new Promise((resolve) => this.child.once('exit', resolve));
    await rm(this.folder, {recursive: true, force: true, maxRetries: 5});
  }
}
