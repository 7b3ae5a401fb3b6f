// The items of a Retrieve, an Attend or a Decode step, checked and answered: what these calls share.
#ifndef SEINE_SERVICE_CALLS_RETRIEVER_H_
#define SEINE_SERVICE_CALLS_RETRIEVER_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "index/index.h"
#include "seine/v1/retrieval_service.pb.h"
#include "service/core.h"

namespace seine {

// A batch of items with scratch that is kept from one to the next. Not thread-safe: one per stream or call.
class Retriever {
 public:
  using Items = google::protobuf::RepeatedPtrField<v1::RetrieveItem>;

  explicit Retriever(Core& core) : core_(core) {}

  // Checks the settings and every item; a wrong item is remembered for its answer, wrong settings are returned. `items`
  // must live until they are answered; indexes are held until then, or until a Prepare fails. nullptr: the items are to
  // be retrieved, not attended.
  absl::Status Prepare(const Items& items, const v1::Selector& selector, const v1::Attention* attention);
  // Answers what Prepare has taken, in order: one of the two, as Prepare was told. `progress`: kernels/backend.h. The
  // search of an index that fails as a whole is said of each of its items, and returned besides.
  absl::Status Retrieve(google::protobuf::RepeatedPtrField<v1::RetrieveAnswer>* answers,
                        const ProgressCallback& progress);
  absl::Status Attend(google::protobuf::RepeatedPtrField<v1::AttendAnswer>* answers, const ProgressCallback& progress);
  // The index of the first right item, until it is answered; nullptr: there is none.
  std::shared_ptr<Index> first_index() const { return groups_.empty() ? nullptr : groups_.front().index; }
  size_t size() const { return wrong_.size(); }  // items that Prepare took
  void Forget() { groups_.clear(); }             // lets go of the indexes

 private:
  // The items of one index and the settings for them.
  struct Group {
    std::shared_ptr<Index> index;
    Checked<SearchParams> params;
    std::optional<Checked<AttentionParams>> attention;  // where items are attended
    std::vector<RetrieveItem> items;
    std::vector<int> places;  // of the items in the request
    int sets() const;         // of an item's answer
    const Geometry& geometry() const { return index->config().geometry; }
  };
  absl::Status PrepareAll(const Items& items, const v1::Selector& selector, const v1::Attention* attention);
  absl::Status PrepareItem(int place, const v1::RetrieveItem& item, const v1::Selector& selector,
                           const v1::Attention* attention);
  absl::StatusOr<Group*> GroupOf(std::shared_ptr<Index> index, const v1::Selector& selector,
                                 const v1::Attention* attention);
  absl::Status CheckAnswerSize(const v1::Attention* attention) const;
  template <typename Answer, typename Call, typename Convert>
  absl::Status AnswerAll(google::protobuf::RepeatedPtrField<Answer>* answers, Call call, Convert convert);

  Core& core_;
  bool with_scores_ = false;
  std::vector<Group> groups_;
  std::vector<absl::Status> wrong_;                           // [items], OK where the item is right
  std::vector<std::vector<float>> queries_;                   // [items], used where queries are not fp32
  std::vector<std::vector<std::vector<int32_t>>> positions_;  // [items][sets], of those that give them
};

}  // namespace seine

#endif  // SEINE_SERVICE_CALLS_RETRIEVER_H_
