// Low-rank tokens in snapshots, with their bases and what is learnt: a part of LowRankStore (low_rank_store.h).
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/subspace/low_rank_store.h"
#include "kernels/host.h"

namespace seine {

void LowRankStore::Save(StateWriter* writer) const {
  writer->Put(size_);
  writer->Put<uint64_t>(runs_.size());
  for (const Run& run : runs_) {
    writer->Put(run.begin);
    SaveBlock(run.block, writer);
  }
  SaveLearnt(writer);
}

void LowRankStore::SaveBlock(const std::shared_ptr<const Block>& block, StateWriter* writer) const {
  if (!writer->PutRef(block.get())) return;
  writer->Put(block->tokens);
  writer->Put(block->kept);
  if (writer->PutRef(block->version.get())) writer->PutPayload(block->version->memory.data(), VersionBytes());
  writer->PutPayload(block->memory.data(), OffsetsOf(block->tokens, block->kept).end);
}

void LowRankStore::SaveLearnt(StateWriter* writer) const {
  writer->Put<uint8_t>(trackers_ != nullptr ? 1 : 0);
  if (trackers_ != nullptr && writer->PutRef(trackers_.get())) {
    trackers_->keys.Save(writer);
    trackers_->values.Save(writer);
    writer->Put(trackers_->blocks_without_queries);
  }
  writer->Put<uint8_t>(given_ != nullptr ? 1 : 0);
  if (given_ == nullptr || !writer->PutRef(given_.get())) return;
  for (const Basis* basis : {&given_->keys, &given_->values}) {
    writer->Put(basis->version);
    writer->PutVector(basis->u);
  }
}

// What stores of one head share: with its shape, for others' are of other sizes.
template <typename T>
struct LowRankStore::OfHead {
  std::shared_ptr<const T> object;
  const LowRankShape* shape = nullptr;
};

template <typename T, typename Make>
std::shared_ptr<const T> LowRankStore::LoadShared(StateReader* reader, Make make) const {
  bool is_new = false;
  auto* const found = reader->GetRef<OfHead<T>>(&is_new);
  if (found == nullptr) return nullptr;
  if (is_new) *found = {make(), shape_};
  return reader->Check(found->object != nullptr && found->shape == shape_, "a head shares another's") ? found->object
                                                                                                      : nullptr;
}

void LowRankStore::Load(int64_t most, StateReader* reader) {
  size_ = reader->GetWithin(0, most, "more is low-rank than there is");
  const auto runs = reader->Get<uint64_t>();
  for (uint64_t i = 0; i < runs && reader->ok(); ++i) {
    const int64_t begin = reader->GetWithin(0, most, "a block begins too late");
    const bool joins = runs_.empty()
                           ? begin == 0
                           : begin > runs_.back().begin && begin <= runs_.back().begin + runs_.back().block->tokens;
    reader->Check(joins && begin < size_, "blocks do not follow each other");
    auto block = LoadShared<Block>(reader, [&] { return NewBlock(reader); });
    if (reader->ok()) runs_.push_back({std::move(block), begin});
  }
  reader->Check(size_ == (runs_.empty() ? 0 : std::min(size_, runs_.back().begin + runs_.back().block->tokens)),
                "blocks hold too little");
  if (reader->GetBool()) trackers_ = LoadShared<TrackerSet>(reader, [&] { return NewTrackers(reader); });
  if (reader->GetBool()) given_ = LoadShared<GivenBases>(reader, [&] { return NewGiven(reader); });
  // The newest basis of keys is asked for wherever there is a block.
  reader->Check(runs_.empty() || trackers_ != nullptr || given_ != nullptr, "a basis is missing");
}

std::shared_ptr<const LowRankStore::Block> LowRankStore::NewBlock(StateReader* reader) const {
  auto block = std::make_shared<Block>();
  block->tokens = reader->GetWithin(1, kMaxBlockTokens, "a block is too long");
  block->kept = reader->GetWithin(0, block->tokens, "a block keeps more than it has");
  block->version = LoadShared<Version>(reader, [&] { return NewVersion(reader); });
  const int64_t bytes = OffsetsOf(block->tokens, block->kept).end;
  if (!reader->Allocate(MemoryKind::kSubspace, bytes, ledger_->pool(MemoryKind::kSubspace), &block->memory)) {
    return nullptr;
  }
  reader->GetPayload(block->memory.data(), bytes,
                     [this, block = block.get()](const uint8_t*) { return IsRight(*block); });
  return block;
}

bool LowRankStore::IsRight(const Block& block) const {
  const LowRankOptions& o = shape_->options;
  const Offsets at = OffsetsOf(block.tokens, block.kept);
  const uint8_t* const data = block.memory.data();
  const auto finite = [&](int64_t begin, int64_t end) {
    std::vector<float> row(std::max(o.key_rank, o.head_dim));
    const auto size = static_cast<int64_t>(SizeOf(o.dtype));
    for (int64_t i = begin; i < end; i += static_cast<int64_t>(row.size()) * size) {
      const auto count = std::min<int64_t>(static_cast<int64_t>(row.size()), (end - i) / size);
      host::Widen(data + i, count, o.dtype, row.data());
      for (int64_t j = 0; j < count; ++j) {
        if (!std::isfinite(row[j])) return false;
      }
    }
    return true;
  };
  const auto* const places = reinterpret_cast<const uint16_t*>(data + at.places);
  for (int64_t i = 0; i < block.kept; ++i) {
    if (places[i] >= block.tokens || (i > 0 && places[i] <= places[i - 1])) return false;
  }
  return finite(0, at.places);
}

std::shared_ptr<const LowRankStore::Version> LowRankStore::NewVersion(StateReader* reader) const {
  auto version = std::make_shared<Version>();
  if (!reader->Allocate(MemoryKind::kSubspace, VersionBytes(), ledger_->pool(MemoryKind::kSubspace),
                        &version->memory)) {
    return nullptr;
  }
  const uint8_t* const data = version->memory.data();
  reader->GetPayload(version->memory.data(), VersionBytes(), [this, data](const uint8_t*) {
    std::vector<float> basis(VersionBytes() / static_cast<int64_t>(sizeof(uint16_t)));
    host::Widen(data, static_cast<int64_t>(basis.size()), DType::kFloat16, basis.data());
    return std::all_of(basis.begin(), basis.end(), [](float x) { return std::isfinite(x); });
  });
  return version;
}

std::shared_ptr<const LowRankStore::TrackerSet> LowRankStore::NewTrackers(StateReader* reader) const {
  const LowRankOptions& o = shape_->options;
  PackedTracker keys = PackedTracker::Load(o.oja, o.head_dim, o.key_rank, reader);
  PackedTracker values = PackedTracker::Load(o.oja, o.head_dim, o.value_rank, reader);
  auto trackers = std::make_shared<TrackerSet>(TrackerSet{std::move(keys), std::move(values), {}, 0});
  trackers->blocks_without_queries = reader->GetWithin(0, INT64_MAX / 4, "blocks are too many");
  if (!reader->Charge(MemoryKind::kSubspace, TrackerBytes(trackers->keys.waiting()), &trackers->charge)) return nullptr;
  return trackers;
}

Basis LowRankStore::LoadBasis(int rank, StateReader* reader) const {
  Basis basis;
  basis.head_dim = shape_->options.head_dim;
  basis.rank = rank;
  basis.version = reader->GetWithin(0, INT64_MAX / 4, "a basis has learnt too much");
  basis.u = reader->GetFiniteVector<float>(static_cast<size_t>(basis.head_dim) * basis.stride());
  return basis;
}

std::shared_ptr<const LowRankStore::GivenBases> LowRankStore::NewGiven(StateReader* reader) const {
  Basis keys = LoadBasis(shape_->options.key_rank, reader);
  Basis values = LoadBasis(shape_->options.value_rank, reader);
  Memory charge;
  const auto bytes = static_cast<int64_t>((keys.u.size() + values.u.size()) * sizeof(float));
  if (!reader->Charge(MemoryKind::kSubspace, bytes, &charge)) return nullptr;
  return std::make_shared<GivenBases>(GivenBases{std::move(keys), std::move(values), std::move(charge)});
}

}  // namespace seine
