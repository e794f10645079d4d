#!/usr/bin/env bash
# scripts/env behaves like the command it runs: arguments, stdin, current directory, environment,
# exit status, signals. Runs on the host, not inside the build root.
# shellcheck disable=SC2016  # inner shells expand what is in single quotes
set -uo pipefail
# A shell in the background hands on signals that are ignored, which no shell can undo.
if [ "${1:-}" != --own-signals ]; then
  exec env --default-signal=INT --default-signal=HUP --default-signal=TERM "${BASH_SOURCE[0]}" --own-signals
fi
set -m # background jobs get SIGINT's default action
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
env=$here/../scripts/env
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

expect() { # WHAT EXPECTED ACTUAL
  if [ "$2" = "$3" ]; then return; fi
  printf 'FAILED: %s\n  expected: %s\n  actual:   %s\n' "$1" "$2" "$3" >&2
  failures=$((failures + 1))
}

expect 'arguments keep their words' '<a b><><*><$x>' "$("$env" printf '<%s>' 'a b' '' '*' '$x')"
expect 'stdin reaches the command' 'hello' "$(echo hello | "$env" cat)"
expect 'current directory is kept' "$(cd "$work" && pwd -P)" "$(cd "$work" && "$env" pwd -P)"
expect 'environment is kept' 'value' "$(EXPERT_SPLIT_PROBE=value "$env" sh -c 'echo $EXPERT_SPLIT_PROBE')"
"$env" sh -c 'exit 7'; expect 'exit status' 7 $?
"$env" no-such-command-here 2>/dev/null; expect 'missing command' 127 $?
"$env" sh -c 'kill -KILL $$' 2>/dev/null; expect 'death by signal' 137 $?
"$env" 2>/dev/null; expect 'no command' 2 $?
expect 'unknown set is named' 1 "$("$env" --extra nonsense true 2>&1 | grep -c 'nonsense: no such set; known:.*reference')"
echo data >"$work/file"
expect 'files keep their paths' 'data' "$("$env" cat "$work/file")"
expect 'the compiler is recent' 'yes' \
  "$("$env" sh -c '[ "$(g++ -dumpversion)" -ge 15 ] && echo yes')"

for signal in INT TERM HUP; do
  "$env" sh -c 'trap "echo caught > \"$1\"; exit 42" '$signal'; echo ready > "$2"
                i=0; while [ $i -lt 300 ]; do sleep 0.1; i=$((i + 1)); done' \
    probe "$work/caught.$signal" "$work/ready.$signal" &
  pid=$!
  for _ in $(seq 300); do [ -e "$work/ready.$signal" ] && break; sleep 0.1; done
  kill -$signal $pid
  wait $pid
  expect "SIG$signal reaches the command" '42 caught' "$? $(cat "$work/caught.$signal" 2>/dev/null)"
done

[ "$failures" = 0 ] || exit 1
echo 'scripts/env behaves like its command'
