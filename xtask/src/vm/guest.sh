#!/bin/sh
# What runs in the virtual machine: Warren as its user would run it, then the tests that make real containers.
# Every line that begins with `vm:` is for the xtask: `ok`, `FAILED`, and `end` as the last.
export PATH=/usr/bin HOME=/root TMPDIR=/tmp WARREN_BIN=/warren/warren
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -o remount,rw /
ip link set lo up
hostname vm
cd /
echo "vm: $(uname -r), cgroup controllers: $(cat /sys/fs/cgroup/cgroup.controllers)"

# expect NAME EXIT-CODE TEXT COMMAND...: the command must end so, and say so.
expect() {
  name=$1 code=$2 text=$3
  shift 3
  output=$("$@" 2>&1)
  status=$?
  echo "$output"
  if [ "$status" -eq "$code" ] && echo "$output" | grep -q "$text"; then
    echo "vm: ok $name"
  else
    echo "vm: FAILED $name: exit code $status instead of $code, or no \`$text\`"
  fi
}

uid_map() { /warren/warren run -- sh -c 'echo out; id; cat /proc/self/uid_map; exit 7'; }
limits() {
  /warren/warren run --memory 64Mi --cpus 500m -- sleep 5 &
  run=$!
  until cat /sys/fs/cgroup/warren-*/*/memory.max 2>/dev/null | grep -q 67108864; do usleep 100000; done
  for file in memory.max memory.swap.max cpu.max pids.max cgroup.procs; do
    echo "$file: $(cat /sys/fs/cgroup/warren-*/*/$file | tr '\n' ' ')"
  done
  wait "$run"
}
bomb() {
  /warren/warren run --memory 64Mi -- sh -c 'head -c 200m /dev/zero | tail >/dev/null; echo "ended with $?"'
}
left() {
  # A run ends before its sandbox is gone.
  tries=0
  until [ -z "$(ls /var/lib/warren/pods)" ] || [ "$tries" -gt 600 ]; do
    tries=$((tries + 1))
    usleep 100000
  done
  /warren/warren down >/dev/null || return 1
  # A process in brackets has ended, and waits for us as its machine's first process.
  leftovers=$(
    find /sys/fs/cgroup -name 'warren-*'
    grep -E 'warren|overlay' /proc/self/mountinfo
    ps | grep -E 'warren-(shim|zygote)' | grep -vE 'grep|\['
    ls /var/lib/warren/pods
  )
  echo "${leftovers:-nothing is left}"
}

# An ordinary user's home: first without cgroups, then in one that was given to the user, as a service manager does it.
given=/sys/fs/cgroup/given
ada() { su ada -c "$1"; }
# patiently COMMAND...: until it succeeds, or a minute is over.
patiently() {
  tries=0
  until "$@" || [ "$tries" -gt 600 ]; do
    tries=$((tries + 1))
    usleep 100000
  done
}
give_cgroup() {
  echo '+cpu +memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
  mkdir "$given"
  chown ada "$given" "$given/cgroup.procs" "$given/cgroup.subtree_control"
  # A process of its own that moves in and becomes the daemon: nobody else may be in there.
  sh -c "echo \$\$ >$given/cgroup.procs && exec su ada -c 'exec /warren/warren up'" >/dev/null &
  patiently test -S /home/ada/.local/share/warren/api.sock
}
given_limits() {
  ada '/warren/warren run --memory 64Mi --cpus 500m -- sleep 5' &
  run=$!
  patiently sh -c "cat $given/warren-*/*/memory.max 2>/dev/null | grep -q 67108864"
  for file in memory.max cpu.max pids.max cgroup.procs; do
    echo "$file: $(cat $given/warren-*/*/$file | tr '\n' ' ')"
  done
  wait "$run"
}
given_left() {
  # A run ends before its sandbox is gone.
  patiently sh -c '[ -z "$(ls /home/ada/.local/share/warren/pods)" ]'
  ada '/warren/warren down' >/dev/null || return 1
  leftovers=$(
    find "$given" -mindepth 1 -name 'warren-*' ! -name warren-daemon
    grep -E 'warren|overlay' /proc/self/mountinfo
    ls /home/ada/.local/share/warren/pods
  )
  echo "${leftovers:-nothing is left}"
}

if [ -x /warren/warren ]; then
  expect "the exit code, the streams and the ids" 7 '0 [0-9]* *65536' uid_map
  expect "the limits are in the cgroup" 0 'cpu.max: 50000 100000' limits
  expect "a memory bomb ends" 0 'ended with 137' bomb
  expect "nothing is left after going down" 0 '^nothing is left$' left

  mkdir -p /home/ada && chown ada:ada /home/ada
  expect "an ordinary user's command" 7 '^ *0 *0 *1$' \
    ada "/warren/warren run -- sh -c 'cat /proc/self/uid_map; exit 7'"
  expect "a limit that nothing would enforce is refused" 125 'limits.memory cannot be enforced' \
    ada '/warren/warren run --memory 64Mi -- true'
  expect "an ordinary user's home goes down" 0 stopped ada '/warren/warren down'
  give_cgroup
  expect "limits in a cgroup that was given away" 0 'cpu.max: 50000 100000' given_limits
  expect "a memory bomb of an ordinary user ends" 0 'ended with 137' \
    ada "/warren/warren run --memory 64Mi -- sh -c 'head -c 200m /dev/zero | tail >/dev/null; echo ended with \$?'"
  expect "nothing is left of an ordinary user's sandboxes" 0 '^nothing is left$' given_left
fi

for test in $(find /warren/tests -type f); do
  echo "vm: begin $test"
  # On an emulated processor everything takes long, and several at once would only take longer each.
  name=${test##*/}
  "$test" --test-threads=1 --nocapture $(cat "/warren/only/$name" "/warren/skip/$name" 2>/dev/null) 2>&1
done
echo "vm: left: $(find /sys/fs/cgroup -name 'warren-*' | wc -l) cgroups, $(grep -c overlay /proc/self/mountinfo) overlays"
echo "vm: end"
sync
reboot -f
