#!/bin/sh
# Installs Warren from a release's files in a directory: checks the checksum, then puts the binary in
# place with one rename, so that an upgrade never leaves half a binary.
#
#   sh install.sh [--prefix DIR] [--from DIR]     install or upgrade
#   sh install.sh --uninstall [--prefix DIR]      remove the binary and its manual; data directories stay
set -eu

prefix=/usr/local
from=$(dirname "$0")
uninstall=no

fail() {
    echo "error: $1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -ge 2 ] || fail "--prefix needs a directory"; prefix=$2; shift 2 ;;
        --from) [ $# -ge 2 ] || fail "--from needs a directory"; from=$2; shift 2 ;;
        --uninstall) uninstall=yes; shift ;;
        --help | -h) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) fail "unknown option \`$1\`; try --help" ;;
    esac
done

target=$prefix/bin/warren

if [ "$uninstall" = yes ]; then
    [ -e "$target" ] || fail "\`$target\` is not there"
    "$target" down >/dev/null 2>&1 || true
    rm -f "$target" "$prefix/share/man/man1/warren.1.gz" "$prefix"/share/man/man1/warren-*.1.gz
    rm -f "$prefix/share/bash-completion/completions/warren" "$prefix/share/fish/vendor_completions.d/warren.fish" \
        "$prefix/share/zsh/site-functions/_warren"
    echo "removed $target; data directories are kept (/var/lib/warren, ~/.local/share/warren)"
    exit 0
fi

[ "$(uname -s)" = Linux ] || fail "Warren runs on Linux only"
archive=$(find "$from" -maxdepth 1 -name "warren-*-$(uname -m)-linux.tar.gz" | sort | tail -n 1)
[ -n "$archive" ] || fail "no archive for $(uname -m) in \`$from\`; download warren-VERSION-$(uname -m)-linux.tar.gz and SHA256SUMS there"
[ -e "$from/SHA256SUMS" ] || fail "\`$from/SHA256SUMS\` is missing; download it beside the archive"

name=$(basename "$archive")
wanted=$(awk -v name="$name" '$2 == name { print $1 }' "$from/SHA256SUMS")
[ -n "$wanted" ] || fail "SHA256SUMS has no line for $name"
found=$(sha256sum "$archive" | cut -d ' ' -f 1)
[ "$wanted" = "$found" ] || fail "checksum of $name is $found, SHA256SUMS says $wanted; download both again"

mkdir -p "$prefix/bin" || fail "cannot create \`$prefix/bin\`; run as root, or choose --prefix"
work=$(mktemp -d "$prefix/bin/.warren-install.XXXXXX") || fail "cannot write to \`$prefix/bin\`; run as root, or choose --prefix"
trap 'rm -rf "$work"' EXIT
tar -xzf "$archive" -C "$work" --strip-components 1
"$work/warren" version >/dev/null || fail "the binary in $name does not run on this machine"
mkdir -p "$prefix/share" && cp -R "$work/share/." "$prefix/share/" || fail "cannot write the manual to \`$prefix/share\`"
mv -f "$work/warren" "$target"
echo "installed $("$target" version) as $target"
