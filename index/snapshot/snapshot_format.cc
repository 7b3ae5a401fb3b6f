#include "index/snapshot/snapshot_format.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "index/stop_status.h"

namespace seine {

namespace {

static_assert(std::endian::native == std::endian::little, "snapshots are written as the machine has its numbers");

constexpr int64_t kFixedBytes = 16, kEntryBytes = 16, kHashBytes = sizeof(Hash128), kChainBytes = 2 * kHashBytes;
constexpr uint64_t kHeaderSeed = ~uint64_t{0};

enum class Kind : uint32_t { kSettings = 1, kState = 2, kArrays = 3, kChain = 4 };

// Sections before the first of arrays.
size_t FirstArrays(bool chained) { return chained ? 3 : 2; }

Kind KindOf(bool chained, size_t section) {
  if (section >= FirstArrays(chained)) return Kind::kArrays;
  return section == 0 ? Kind::kSettings : section == 1 ? Kind::kState : Kind::kChain;
}

template <typename T>
void Put(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T At(const std::vector<uint8_t>& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

int64_t BytesOf(const StateWriter::Part& part) {
  int64_t bytes = 0;
  for (const StateWriter::Payload& payload : part) bytes += payload.bytes;
  return bytes;
}

absl::Status WriteText(absl::string_view text, ByteSink* sink) {
  return sink->Write(reinterpret_cast<const uint8_t*>(text.data()), static_cast<int64_t>(text.size()));
}

absl::Status WriteHash(const SectionHash& hash, ByteSink* sink) {
  const Hash128 digest = hash.Digest();
  return sink->Write(digest.data(), kHashBytes);
}

absl::Status WriteHashed(absl::string_view text, uint64_t seed, ByteSink* sink) {
  SectionHash hash(seed);
  hash.Add(text.data(), static_cast<int64_t>(text.size()));
  if (absl::Status s = WriteText(text, sink); !s.ok()) return s;
  return WriteHash(hash, sink);
}

std::string NamesIn(const SnapshotChain& chain) {
  std::string text;
  for (const SnapshotName* name : {&chain.name, &chain.base}) text.append(name->begin(), name->end());
  return text;
}

std::string HeaderOf(bool chained, const std::vector<int64_t>& sections) {
  std::string header(kSnapshotMagic);
  Put(kSnapshotVersion, &header);
  Put(static_cast<uint32_t>(sections.size()), &header);
  for (size_t i = 0; i < sections.size(); ++i) {
    Put(static_cast<uint32_t>(KindOf(chained, i)), &header);
    Put(uint32_t{0}, &header);
    Put(static_cast<uint64_t>(sections[i]), &header);
  }
  return header;
}

absl::Status WriteBytes(const uint8_t* data, int64_t bytes, SectionHash* hash, Pace* pace, ByteSink* sink) {
  for (int64_t at = 0; at < bytes; at += kSnapshotStep) {
    const int64_t step = std::min(bytes - at, kSnapshotStep);
    if (absl::Status s = StopStatus(); !s.ok()) return s;
    hash->Add(data + at, step);
    if (absl::Status s = sink->Write(data + at, step); !s.ok()) return s;
    pace->Pause();
  }
  return absl::OkStatus();
}

absl::Status WritePart(const StateWriter::Part& part, uint64_t number, Pace* pace, ByteSink* sink) {
  SectionHash hash(number);
  std::vector<uint8_t> made;
  for (const StateWriter::Payload& payload : part) {
    const uint8_t* data = payload.data;
    if (data == nullptr) {
      made.assign(payload.bytes, 0);
      payload.fill(made.data());
      data = made.data();
    }
    if (absl::Status s = WriteBytes(data, payload.bytes, &hash, pace, sink); !s.ok()) return s;
  }
  return WriteHash(hash, sink);
}

}  // namespace

absl::StatusOr<int64_t> WriteSnapshot(absl::string_view settings, const StateWriter& state, ByteSink* sink, int pauses,
                                      const SnapshotChain* chain) {
  const std::string names = chain == nullptr ? "" : NamesIn(*chain);
  std::vector<absl::string_view> texts = {settings, state.state()};
  if (chain != nullptr) texts.push_back(names);
  std::vector<int64_t> sections;
  for (const absl::string_view text : texts) sections.push_back(static_cast<int64_t>(text.size()));
  const size_t parts = state.parts().size() - 1;  // the last is open
  for (size_t i = 0; i < parts; ++i) sections.push_back(BytesOf(state.parts()[i]));
  if (sections.size() > kMaxSections) {
    return absl::FailedPreconditionError("a snapshot of so many sequences and layers is not made");
  }
  if (absl::Status s = WriteHashed(HeaderOf(chain != nullptr, sections), kHeaderSeed, sink); !s.ok()) return s;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (absl::Status s = WriteHashed(texts[i], i, sink); !s.ok()) return s;
  }
  int64_t bytes = kFixedBytes + kHashBytes;
  for (const int64_t section : sections) bytes += kEntryBytes + section + kHashBytes;
  Pace pace(pauses);
  for (size_t i = 0; i < parts; ++i) {
    if (absl::Status s = WritePart(state.parts()[i], texts.size() + i, &pace, sink); !s.ok()) return s;
  }
  return bytes;
}

absl::Status SnapshotReader::Open() {
  std::vector<int64_t> sections;
  if (absl::Status s = ReadHeader(&sections); !s.ok()) return s;
  if (absl::Status s = ReadText(sections[0], &settings_); !s.ok()) return s;
  if (absl::Status s = ReadText(sections[1], &state_); !s.ok()) return s;
  const size_t first = FirstArrays(chained_);
  part_bytes_.assign(sections.begin() + static_cast<int64_t>(first), sections.end());
  return chained_ ? ReadChain(sections[2]) : absl::OkStatus();
}

absl::Status SnapshotReader::ReadChain(int64_t bytes) {
  if (bytes != kChainBytes) return absl::DataLossError("the snapshot's table is damaged");
  std::string text;
  if (absl::Status s = ReadText(bytes, &text); !s.ok()) return s;
  std::memcpy(chain_.name.data(), text.data(), kHashBytes);
  std::memcpy(chain_.base.data(), text.data() + kHashBytes, kHashBytes);
  return absl::OkStatus();
}

absl::Status SnapshotReader::ReadHeader(std::vector<int64_t>* sections) {
  if (source_->size() && *source_->size() < kFixedBytes) {
    return absl::DataLossError("the snapshot is cut short, or none at all");
  }
  std::vector<uint8_t> header(kFixedBytes);
  if (absl::Status s = source_->Read(header.data(), kFixedBytes); !s.ok()) return s;
  if (std::memcmp(header.data(), kSnapshotMagic, sizeof(kSnapshotMagic) - 1) != 0) {
    return absl::FailedPreconditionError("the file is no snapshot of Seine's");
  }
  version_ = At<uint32_t>(header, 8);
  const auto count = At<uint32_t>(header, 12);
  if (version_ < kOldestSnapshotVersion || version_ > kSnapshotVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the snapshot is of version ", version_,
                                                      ", and this build reads ", kOldestSnapshotVersion, " to ",
                                                      kSnapshotVersion));
  }
  if (count < 2 || count > kMaxSections) return absl::DataLossError("the snapshot's table is damaged");
  header.resize(kFixedBytes + count * kEntryBytes);
  if (absl::Status s = source_->Read(header.data() + kFixedBytes, count * kEntryBytes); !s.ok()) return s;
  SectionHash hash(kHeaderSeed);
  hash.Add(header.data(), static_cast<int64_t>(header.size()));
  if (absl::Status s = CheckHash(hash); !s.ok()) return s;
  return CheckTable(header, sections);
}

absl::Status SnapshotReader::CheckTable(const std::vector<uint8_t>& header, std::vector<int64_t>* sections) {
  constexpr uint64_t kMost = uint64_t{1} << 50;
  constexpr size_t kThird = kFixedBytes + 2 * kEntryBytes;
  chained_ = header.size() > kThird && At<uint32_t>(header, kThird) == static_cast<uint32_t>(Kind::kChain);
  bytes_ = static_cast<int64_t>(header.size()) + kHashBytes;
  for (size_t at = kFixedBytes, i = 0; at < header.size(); at += kEntryBytes, ++i) {
    const auto kind = At<uint32_t>(header, at);
    const auto bytes = At<uint64_t>(header, at + 8);
    if (kind != static_cast<uint32_t>(KindOf(chained_, i)) || At<uint32_t>(header, at + 4) != 0 || bytes > kMost) {
      return absl::DataLossError("the snapshot's table is damaged");
    }
    sections->push_back(static_cast<int64_t>(bytes));
    bytes_ += sections->back() + kHashBytes;
    if (bytes_ > static_cast<int64_t>(kMost)) return absl::DataLossError("the snapshot's table is damaged");
  }
  const std::optional<int64_t> size = source_->size();
  if (!size || *size == bytes_) return absl::OkStatus();
  return absl::DataLossError(*size < bytes_
                                 ? absl::StrCat("the snapshot is cut short: ", *size, " of ", bytes_, " bytes")
                                 : absl::StrCat("the snapshot is followed by ", *size - bytes_, " bytes"));
}

absl::Status SnapshotReader::ReadText(int64_t bytes, std::string* text) {
  SectionHash hash(number_++);
  while (bytes > 0) {
    const int64_t step = std::min(bytes, kSnapshotStep);
    const size_t at = text->size();
    text->resize(at + step);  // a length that lies takes no more memory than there are bytes
    auto* const data = reinterpret_cast<uint8_t*>(text->data()) + at;
    if (absl::Status s = source_->Read(data, step); !s.ok()) return s;
    hash.Add(data, step);
    bytes -= step;
  }
  return CheckHash(hash);
}

absl::Status SnapshotReader::ReadParts(const std::vector<StateReader::Part>& parts, PieceRunner* runner) {
  Place place;
  const auto read = [&]() -> absl::StatusOr<bool> {
    if (absl::Status s = StopStatus(); !s.ok()) return s;
    if (absl::Status s = ReadPiece(parts[place.part], &place); !s.ok()) return s;
    return place.part < part_bytes_.size();
  };
  if (part_bytes_.empty()) return absl::OkStatus();
  if (runner != nullptr) return runner->Run(read);
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = read();
  return more.status();
}

absl::Status SnapshotReader::ReadPiece(const StateReader::Part& part, Place* place) {
  if (!place->hash) place->hash.emplace(number_++);
  if (place->payload < part.size()) {
    const StateReader::Payload& payload = part[place->payload];
    uint8_t* data = payload.data;
    if (data == nullptr) {
      scratch_.resize(payload.bytes);
      data = scratch_.data();
    }
    const int64_t step = std::min(payload.bytes - place->at, kSnapshotStep);
    if (absl::Status s = source_->Read(data + place->at, step); !s.ok()) return s;
    place->hash->Add(data + place->at, step);
    place->at += step;
    if (place->at < payload.bytes) return absl::OkStatus();
    if (payload.take && !payload.take(data)) {
      return absl::DataLossError(
          absl::StrCat("section ", number_ - 1, " of the snapshot is damaged: what it holds cannot be"));
    }
    ++place->payload;
    place->at = 0;
  }
  if (place->payload < part.size()) return absl::OkStatus();
  if (absl::Status s = CheckHash(*place->hash); !s.ok()) return s;
  place->hash.reset();
  ++place->part;
  place->payload = 0;
  return absl::OkStatus();
}

absl::Status SnapshotReader::CheckHash(const SectionHash& hash) {
  Hash128 stored;
  if (absl::Status s = source_->Read(stored.data(), kHashBytes); !s.ok()) return s;
  if (stored == hash.Digest()) return absl::OkStatus();
  return absl::DataLossError(
      number_ == 0 ? std::string("the snapshot's header is damaged: its checksum differs")
                   : absl::StrCat("section ", number_ - 1, " of the snapshot is damaged: its checksum differs"));
}

}  // namespace seine
