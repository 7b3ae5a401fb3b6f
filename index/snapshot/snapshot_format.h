// The snapshot file: what stands where. All numbers are little-endian.
//
//   header    magic "SEINSNAP", uint32 version, uint32 sections, then a table of {uint32 kind, uint32 0, uint64 bytes}
//   a
//             section; 16 bytes of xxh3-128 over all that
//   sections  one after another, each followed by its own xxh3-128, seeded with its number
//               settings  what the index was made with, as lines "field=value" (snapshot_settings.h)
//               state     the sequences, numbers alone (state_writer.h)
//               chain     may be missing: 16 bytes of its name, and 16 of the name of the snapshot that it adds to
//               arrays    one a layer of each sequence: rows, codes, queries, as they lie
//
// Sizes come first, so a reader knows what it needs, and whether it is all there, before it reads on. What sequences
// share is written once, in the section of the first that has it. A snapshot that adds to others leaves out what they
// hold: it means something together with them.
#ifndef SEINE_INDEX_SNAPSHOT_SNAPSHOT_FORMAT_H_
#define SEINE_INDEX_SNAPSHOT_SNAPSHOT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "index/bytes/byte_stream.h"
#include "index/bytes/pace.h"
#include "index/bytes/piece_runner.h"
#include "index/bytes/section_hash.h"
#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/snapshot/snapshot_base.h"

namespace seine {

// Goes up when a build that reads the version before would misread a file. Builds read versions 1 to their own.
// Version 1 does not say how many windows' means a piece holds. Versions 1 and 2 know no wide factors (kernels/math.h).
inline constexpr uint32_t kSnapshotVersion = 3, kOldestSnapshotVersion = 1;
inline constexpr char kSnapshotMagic[] = "SEINSNAP";  // 8 bytes, without the zero
inline constexpr uint32_t kMaxSections = 1 << 20;
// Bytes that are hashed and handed on at once: they stay in a core's cache meanwhile, and take some ten
// microseconds, after which steps have their turn (pace.h).
inline constexpr int64_t kSnapshotStep = int64_t{1} << 17;

// Returns the bytes written. `pauses` are those of its Pace. `chain`: of one that others
// add to, or that adds to another (snapshot_base.h). Errors of the
// sink, or StopStatus().
absl::StatusOr<int64_t> WriteSnapshot(absl::string_view settings, const StateWriter& state, ByteSink* sink,
                                      int pauses = kSnapshotPauses, const SnapshotChain* chain = nullptr);

// Reads a snapshot in order: Open, then settings() and TakeState(), then ReadParts with what these have asked for.
// Errors: DATA_LOSS (torn, or not what a checksum says), FAILED_PRECONDITION (no snapshot, or of a newer version),
// RESOURCE_EXHAUSTED, StopStatus(), and those of the source.
class SnapshotReader {
 public:
  explicit SnapshotReader(ByteSource* source) : source_(source) {}

  absl::Status Open();
  uint32_t version() const { return version_; }
  const std::string& settings() const { return settings_; }
  std::string TakeState() { return std::move(state_); }
  const SnapshotChain& chain() const { return chain_; }  // without names where there is none
  const std::vector<int64_t>& part_bytes() const { return part_bytes_; }
  // `runner` runs the pieces; nullptr: they run at once, whoever steps.
  absl::Status ReadParts(const std::vector<StateReader::Part>& parts, PieceRunner* runner = nullptr);
  int64_t bytes() const { return bytes_; }  // of the whole file

 private:
  absl::Status ReadHeader(std::vector<int64_t>* sections);
  absl::Status CheckTable(const std::vector<uint8_t>& table, std::vector<int64_t>* sections);
  absl::Status ReadChain(int64_t bytes);
  absl::Status ReadText(int64_t bytes, std::string* text);
  // How far the parts have been read.
  struct Place {
    size_t part = 0, payload = 0;
    int64_t at = 0;  // bytes of the payload
    std::optional<SectionHash> hash;
  };
  // The next piece of `part`, and of its end the checksum.
  absl::Status ReadPiece(const StateReader::Part& part, Place* place);
  absl::Status CheckHash(const SectionHash& hash);

  ByteSource* const source_;
  uint32_t version_ = kSnapshotVersion;
  std::string settings_, state_;
  bool chained_ = false;
  SnapshotChain chain_;
  std::vector<int64_t> part_bytes_;
  std::vector<uint8_t> scratch_;
  uint64_t number_ = 0;  // of the next section
  int64_t bytes_ = 0;
};

}  // namespace seine

#endif  // SEINE_INDEX_SNAPSHOT_SNAPSHOT_FORMAT_H_
