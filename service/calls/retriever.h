// The items of a Retrieve, an Attend or a Decode step, checked and answered: what these calls share.
#ifndef SEINE_SERVICE_CALLS_RETRIEVER_H_
#define SEINE_SERVICE_CALLS_RETRIEVER_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "index/index.h"
#include "seine/v1/retrieval_service.pb.h"
#include "service/calls/convert/step.h"
#include "service/core.h"

namespace seine {

// A batch of items with scratch that is kept from one to the next. Not thread-safe: one per stream or call.
class Retriever {
 public:
  explicit Retriever(Core& core) : core_(core) {}

  // Checks the settings and every item; a wrong item is remembered for its answer, wrong settings are returned. What
  // items view must live until they are answered; indexes are held until then, or until a Prepare fails. nullptr: the
  // items are to be retrieved, not attended.
  absl::Status Prepare(absl::Span<const ItemView> items, const v1::Selector& selector, const v1::Attention* attention);
  // Answers what Prepare has taken, as it was told. `progress`: kernels/backend.h. The search of an index that fails as
  // a whole is said of each of its items, and returned besides. Where there is no memory, every item's answer says so.
  absl::Status Answer(AnswerTaker* taker, const ProgressCallback& progress);
  // The index of the first right item, until it is answered; nullptr: there is none.
  std::shared_ptr<Index> first_index() const { return groups_.empty() ? nullptr : groups_.front().index; }

 private:
  // The items of one index and the settings for them.
  struct Group {
    std::shared_ptr<Index> index;
    Checked<SearchParams> params;
    std::optional<Checked<AttentionParams>> attention;  // where items are attended
    std::vector<RetrieveItem> items;
    std::vector<size_t> places;  // of the items in the request
    AnswerShape shape;           // of an item's answer
    const Geometry& geometry() const { return index->config().geometry; }
  };
  absl::Status PrepareAll(absl::Span<const ItemView> items, const v1::Selector& selector,
                          const v1::Attention* attention);
  absl::Status PrepareItem(size_t place, const ItemView& item, const v1::Selector& selector,
                           const v1::Attention* attention);
  // Queries where they lie, and where the answer is to go.
  absl::Status PrepareQueries(size_t place, const ItemView& item, const Geometry& geometry, RetrieveItem* out);
  absl::Status PrepareOnDevice(size_t place, const ItemView& item, const Geometry& geometry, RetrieveItem* out);
  absl::StatusOr<Group*> GroupOf(std::shared_ptr<Index> index, const v1::Selector& selector,
                                 const v1::Attention* attention);
  absl::Status CheckAnswerSize(const v1::Attention* attention) const;
  template <typename OneAnswer>
  void TakeOne(size_t place, const Group& group, OneAnswer* answer, AnswerTaker* taker);
  absl::Status AnswerAll(AnswerTaker* taker, const ProgressCallback& progress);
  void TakeStatus(size_t place, const absl::Status& status, AnswerTaker* taker);

  Core& core_;
  bool attended_ = false;
  std::vector<Group> groups_;
  std::vector<absl::Status> wrong_;                           // [items], OK where the item is right
  std::vector<std::vector<float>> queries_;                   // [items], used where queries are not fp32
  std::vector<DeviceTensors> device_;                         // [items], used where queries lie on a device
  std::vector<std::vector<std::vector<int32_t>>> positions_;  // [items][sets], of those that give them
};

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_RETRIEVER_H_
