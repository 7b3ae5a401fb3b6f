#!/usr/bin/env bash
# Installs the library of a build tree, builds the consumer project against what was installed, and runs its two programs, one
# of them against a server. Arguments: the build tree, the program seined. CMAKE: the cmake to use.
set -euo pipefail
build=$1 seined=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../../.." && pwd)
prefix=$build/install
consumer=$build/consumer

rm -rf "$prefix" "$consumer"
"$CMAKE" --install "$build" --component dev --prefix "$prefix" >"$build/install.log"
if grep -rIl -e "$source" "$prefix/lib" "$prefix/include" --include='*.cmake' --include='*.h'; then
  echo "the files above name the tree that they were built in" >&2
  exit 1
fi
if grep -rIl '<Eigen/' "$prefix/include"; then
  echo "the headers above are installed and need Eigen, which a user of the library need not have" >&2
  exit 1
fi
"$CMAKE" -S "$here" -B "$consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON
"$CMAKE" --build "$consumer"
"$consumer/embedded"

scratch=$(mktemp -d)
server=
end() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  wait
  rm -rf "$scratch"
}
trap end EXIT
"$seined" --listen "unix:$scratch/seine.sock" --log-level warning &
server=$!
"$consumer/caller" "unix:$scratch/seine.sock"
