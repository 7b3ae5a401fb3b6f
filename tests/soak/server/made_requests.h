// Requests that are right, for attacks to send too many of or to spoil; keys carry a mark of who sent them.
#ifndef SEINE_TESTS_SOAK_MADE_REQUESTS_H_
#define SEINE_TESTS_SOAK_MADE_REQUESTS_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "seine/v1/admin_service.grpc.pb.h"
#include "seine/v1/eviction_service.grpc.pb.h"
#include "seine/v1/index_service.grpc.pb.h"
#include "seine/v1/retrieval_service.grpc.pb.h"
#include "seine/v1/sequence_service.grpc.pb.h"
#include "seine/v1/subspace_service.grpc.pb.h"

namespace seine::soak {

inline constexpr int kLayers = 2, kQHeads = 8, kKvHeads = 2, kDim = 64;
inline constexpr int kTokenBytes = kKvHeads * kDim * 2;  // of keys, and as many of values

// A connection of its own and its stubs.
struct Client {
  explicit Client(const std::string& text);  // as Endpoint::ToString
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::IndexService::Stub> index;
  std::unique_ptr<v1::SequenceService::Stub> sequence;
  std::unique_ptr<v1::RetrievalService::Stub> retrieval;
  std::unique_ptr<v1::EvictionService::Stub> eviction;
  std::unique_ptr<v1::AdminService::Stub> admin;
};

v1::IndexSpec Spec(const std::string& name);
// Pseudo-random halves of magnitude 0.5 to 2; the low byte of each key's first element is `mark`.
v1::Tensor Halves(int64_t tokens, int heads, uint32_t seed, uint8_t mark);
v1::AppendItem Item(const v1::SequenceHandle& handle, int layer, int64_t position, int64_t tokens, uint8_t mark);
v1::RetrieveItem Query(const v1::SequenceHandle& handle, int layer, uint32_t seed);

// Makes the index (it may be there), a sequence, and a prompt of `tokens` in every layer. Empty id: a call failed.
v1::SequenceHandle Prompt(Client& client, const std::string& index, const std::string& id, int64_t tokens,
                          uint8_t mark);

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_MADE_REQUESTS_H_
