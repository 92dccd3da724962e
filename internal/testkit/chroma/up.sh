#!/bin/sh
# Runs a Chroma server in the foreground. Its program may need a newer C library than the system has; then three packages of the next Debian are unpacked
# into a private folder, and node is started through that folder's loader. Nothing is installed system-wide.
# usage: up.sh DIR DATA PORT     DIR holds package.json and what is installed; stop the server with SIGINT, as it does not heed SIGTERM
set -eu
DIR=$1; DATA=$2; PORT=$3
exec 9>"$DIR/node_modules.lock"
flock 9 # packages of tests run side by side
cd "$DIR"
if ! cmp -s package-lock.json node_modules/.installed; then
  npm ci --no-fund --no-audit --silent >&2
  cp package-lock.json node_modules/.installed
fi
NODE=$(readlink -f "$(command -v node)")
CLI=$DIR/node_modules/chromadb/dist/cli.mjs
LIBC=$DIR/node_modules/.libc
if [ "$(printf '%s\n' 2.39 "$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" | sort -V | head -n 1)" != 2.39 ] && [ ! -e "$LIBC/ok" ]; then
  rm -rf "$LIBC"
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ')
  [ -n "$mirror" ] || { echo "no Debian source is set up on this machine" >&2; exit 1; }
  mkdir -p "$LIBC/lists/partial" "$LIBC/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" > "$LIBC/sources.list"
  cat > "$LIBC/apt.conf" <<X
Dir::Etc::sourcelist "$LIBC/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$LIBC/lists";
Dir::Cache "$LIBC/cache";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Languages "none";
APT::Sandbox::User "root";
X
  ( cd "$LIBC/cache" && export APT_CONFIG="$LIBC/apt.conf" && apt-get -qq update >&2 && apt-get -qq download libc6 libstdc++6 libgcc-s1 >&2 && for f in *.deb; do dpkg-deb -x "$f" "$LIBC"; done )
  rm -rf "$LIBC/lists" "$LIBC/cache"
  touch "$LIBC/ok"
fi
exec 9>&-
export HOME="$DATA"
if [ -e "$LIBC/ok" ]; then
  L=$LIBC/usr/lib/x86_64-linux-gnu
  exec "$L/ld-linux-x86-64.so.2" --library-path "$L:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu" "$NODE" "$CLI" run --path "$DATA/chroma" --host 127.0.0.1 --port "$PORT"
fi
exec "$NODE" "$CLI" run --path "$DATA/chroma" --host 127.0.0.1 --port "$PORT"
