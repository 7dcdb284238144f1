#!/busybox sh
# The first program of the virtual machine: loads what the disk needs and goes on from there.
/busybox mount -t devtmpfs dev /dev
for module in $(/busybox cat /modules/order); do
  /busybox insmod "/modules/$module" || /busybox echo "vm: $module did not load"
done
tries=0
until /busybox mount -t ext4 /dev/vda /disk 2>/dev/null; do
  tries=$((tries + 1))
  if [ "$tries" -gt 100 ]; then
    /busybox echo "vm: there is no disk"
    /busybox reboot -f
  fi
  /busybox usleep 100000
done
exec /busybox switch_root /disk /sbin/init
