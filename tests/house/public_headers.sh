#!/usr/bin/env bash
# Proves that the library's public headers need the standard library and abseil alone: no header that the compiler reads for
# them lies in another library. Arguments: the compiler, the folder of Eigen's headers, then the public headers.
set -euo pipefail
compiler=$1 eigen=$2
shift 2
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# Headers of other libraries that a file with the include $1 reads.
foreign() {
  printf '#include "%s"\n' "$1" | "$compiler" -std=c++20 -M -x c++ -I "$tree" -I "$eigen" - | tr ' ' '\n' |
    { grep -E '/(eigen3|Eigen|hwy|grpc|grpcpp|google/protobuf|nlohmann)/' || true; }
}

# This one needs Eigen and says so: the test sees what it looks for.
[[ -n $(foreign profile/moments.h) ]] || {
  echo "public_headers: profile/moments.h includes Eigen, and it was not seen" >&2
  exit 1
}
for header in "$@"; do
  found=$(foreign "$header")
  [[ -z $found ]] || {
    printf '%s includes headers of other libraries:\n%s\n' "$header" "$found" >&2
    exit 1
  }
  echo "$header: std and abseil alone"
done
