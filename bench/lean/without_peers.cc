// What a build without FAISS and librsvg has in the place of bench/peers: the one that a wheel brings, for both would
// add some 85 MB of libraries. Each says so where it is asked for.
#include "absl/strings/str_cat.h"
#include "bench/drift/stream_method.h"
#include "bench/methods/method.h"
#include "bench/report/png.h"

namespace seine::bench {
namespace {

absl::Status WithoutFaiss(const char* flag, const std::string& name) {
  return absl::FailedPreconditionError(absl::StrCat(flag, ": ", name,
                                                    " needs FAISS, which this seine-bench is built without; that of "
                                                    "the Debian package seine-tools, or of ./dev build, has it"));
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Method>>> MakeFaissMethods(const std::string& name, int, int, int64_t,
                                                                      const std::vector<double>&) {
  return WithoutFaiss("--baseline", name);
}

absl::StatusOr<std::unique_ptr<Method>> MakeFaissPq(const DatasetInfo&, int, int, const std::vector<int64_t>&) {
  return WithoutFaiss("--candidates", "faiss_pq_fastscan");
}

std::string FaissVersion() { return ""; }

absl::StatusOr<std::unique_ptr<StreamMethod>> MakeFaissStream(const std::string& name, bool, const StreamOptions&) {
  return WithoutFaiss("--methods", name);
}

bool CanWritePng() { return false; }

std::string WritePng(const std::string&, const std::string&) { return "this build draws .svg alone"; }

}  // namespace seine::bench
