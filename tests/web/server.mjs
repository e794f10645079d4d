// A running `expert-split serve` for the tests of this folder.
import {spawn} from 'node:child_process';
import {once} from 'node:events';

// EXPERT_SPLIT_BINARY and EXPERT_SPLIT_MODEL name the program and a model.
export async function startServer(more = []) {
  const {EXPERT_SPLIT_BINARY: binary, EXPERT_SPLIT_MODEL: model} = process.env;
  const child = spawn(binary, ['serve', '--model', model, '--port', '0', '--ctx', '2048',
                               '--parallel', '2', '--alias', 'demo', ...more],
                      {stdio: ['ignore', 'ignore', 'pipe']});
  let log = '';
  child.stderr.on('data', (data) => { log += data; });
  const ended = once(child, 'exit');
  for (;;) {
    const address = log.match(/ on (http:\/\/[^,]+),/);
    if (address) {
      return {
        address: address[1],
        log: () => log,
        async stop() {
          child.kill('SIGTERM');
          const [status] = await ended;
          return status;
        },
      };
    }
    if (child.exitCode !== null) throw new Error(`serve ended: ${log}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// Waits until `done` gives something true, for at most a minute.
export async function eventually(done, what) {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const value = await done();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`never happened: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

export async function activity(address) {
  const answer = await fetch(`${address}/v1/placement`);
  return (await answer.json()).activity;
}
