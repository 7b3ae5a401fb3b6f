// The codecs of heads in snapshots: a part of Transforms (transforms.h).
#include <utility>

#include "index/bytes/state_reader.h"
#include "index/bytes/state_writer.h"
#include "index/transforms/transforms.h"

namespace seine {

namespace {

void SaveMoments(const QueryMoments& moments, StateWriter* writer) {
  for (const Eigen::MatrixXd& moment : moments) {
    writer->PutVector(std::vector<double>(moment.data(), moment.data() + moment.size()));
  }
}

QueryMoments LoadMoments(int heads, int dim, StateReader* reader) {
  QueryMoments moments;
  for (int h = 0; h < heads; ++h) {
    const auto values = reader->GetFiniteVector<double>(static_cast<size_t>(dim) * dim);
    moments.emplace_back(Eigen::Map<const Eigen::MatrixXd>(values.data(), dim, dim));
  }
  return moments;
}

}  // namespace

void Transforms::Save(const std::shared_ptr<const LayerCodecs>& codecs, StateWriter* writer) const {
  writer->Put<uint8_t>(codecs != nullptr ? 1 : 0);
  if (codecs == nullptr || shared_ != nullptr || !writer->PutRef(codecs.get())) return;
  writer->Put(codecs->position);
  writer->Put<uint8_t>(codecs->queries != nullptr ? 1 : 0);
  if (codecs->queries != nullptr) SaveMoments(*codecs->queries, writer);
  for (const HeadCodec& head : codecs->heads) SaveHead(head, writer);
}

void Transforms::SaveHead(const HeadCodec& head, StateWriter* writer) const {
  const CodecTransform transform = head.codec->Transform();
  for (const auto* values : {&transform.key_map, &transform.query_map, &transform.lambda, &transform.key_scale}) {
    writer->PutVector(*values);
  }
  writer->PutVector(transform.coarse_bits);
  writer->PutVector(transform.total_bits);
  writer->Put(head.noise);
  writer->Put(head.fine_noise);
}

std::shared_ptr<const LayerCodecs> Transforms::Load(StateReader* reader) const {
  if (!reader->GetBool()) return nullptr;
  if (shared_ != nullptr) return shared_;
  bool is_new = false;
  auto* const found = reader->GetRef<std::shared_ptr<const LayerCodecs>>(&is_new);
  if (found == nullptr || !is_new) return found == nullptr ? nullptr : *found;
  const Geometry& g = config_.geometry;
  LayerCodecs codecs;
  codecs.position = reader->GetWithin(-1, INT64_MAX / 4, "a codec's position is negative");
  const bool learnt = reader->GetBool();
  if (!reader->Charge(MemoryKind::kOther, TableBytes(learnt), &codecs.memory)) return nullptr;
  if (learnt) {
    codecs.queries = std::make_shared<const QueryMoments>(LoadMoments(g.num_kv_heads, g.head_dim, reader));
  }
  for (int h = 0; h < g.num_kv_heads && reader->ok(); ++h) codecs.heads.push_back(LoadHead(reader));
  if (!reader->ok()) return nullptr;
  return *found = std::make_shared<const LayerCodecs>(std::move(codecs));
}

HeadCodec Transforms::LoadHead(StateReader* reader) const {
  CodecTransform transform;
  for (auto* values : {&transform.key_map, &transform.query_map, &transform.lambda, &transform.key_scale}) {
    *values = reader->GetVector<float>();
  }
  transform.coarse_bits = reader->GetVector<uint8_t>();
  transform.total_bits = reader->GetVector<uint8_t>();
  const auto noise = reader->GetFinite<double>(), fine_noise = reader->GetFinite<double>();
  if (!reader->Check(traits_.accepts(spec_, transform), "a codec's tables are not of this index")) return {};
  return {traits_.make(spec_, &transform), transform.lambda, noise, fine_noise};
}

}  // namespace seine
