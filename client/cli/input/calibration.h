// A model profile out of recorded traces, or of what a server holds: what `seine calibrate` computes, apart from the
// command line.
#ifndef SEINE_CLIENT_CLI_INPUT_CALIBRATION_H_
#define SEINE_CLIENT_CLI_INPUT_CALIBRATION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "profile/profile.h"

namespace seine::cli {

struct CalibrationOptions {
  std::vector<std::string> traces;  // files as `python -m seine_kv.trace` writes them, all of one model
  int64_t sink = 16;                // first tokens of each text, whose keys and values are left out
  std::string licence;              // empty: those of the traces
};

// Measures every layer of the model; between them the traces must hold each with its q, k and v. `progress` is told
// tensor rows done and rows in all. Errors are FileError and name the file: those of TensorFile::Open, a file that is
// no trace, tensors that disagree, a value that is not finite, traces of different models, a layer that is missing.
absl::StatusOr<Profile> Calibrate(const CalibrationOptions& options,
                                  const std::function<void(int64_t done, int64_t total)>& progress);

struct LiveOptions {
  std::string index;
  std::vector<std::string> sequences;  // ids
  std::string licence;                 // empty: unstated
};

// Measures every layer on what the sequences hold and were asked (index/index.h, Index::Measure). RoPE is the index's.
// `progress` is told layers done and layers in all. Errors are the server's.
absl::StatusOr<Profile> CalibrateLive(const LiveOptions& options, client::Client* client,
                                      const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace seine::cli

#endif  // SEINE_CLIENT_CLI_INPUT_CALIBRATION_H_
