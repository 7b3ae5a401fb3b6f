#include "kernels/backends/cuda/encode_calls.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/codecs/encode/encode_items.h"
#include "kernels/stop.h"

namespace seine::cuda {
namespace {

// Units of keys gathered in a context's rows until they are full, then encoded together.
class EncodeBatch {
 public:
  explicit EncodeBatch(StreamContext* context) : device_(*context->device), context_(*context) {}

  Device::Error Add(const EncodeTask& task, const CodecTables* tables) {
    const CodeLayout& layout = task.codec->layout();
    const int unit = UnitKeys(layout);
    const size_t row_bytes = layout.head_dim * SizeOf(task.keys.dtype);
    if (!items_.empty() && (kind_ != KindOf(task) || head_dim_ != layout.head_dim)) {
      if (const Device::Error error = Flush(); error != Device::kNoError) return error;
    }
    kind_ = KindOf(task);
    head_dim_ = layout.head_dim;
    for (int first = 0; first < task.num_keys;) {
      int now = static_cast<int>((context_.rows.size() - used_) / (row_bytes * unit)) * unit;
      if (now == 0 || items_.size() == kMostItems) {
        if (const Device::Error error = Flush(); error != Device::kNoError) return error;
        continue;
      }
      now = std::min(now, task.num_keys - first);
      AddKeys(task, tables, first, now, row_bytes);
      first += now;
    }
    return Device::kNoError;
  }

  Device::Error Flush() {
    if (items_.empty()) return Device::kNoError;
    ViewWriter views(&context_);
    Device::Error error =
        views.Reserve(ViewWriter::Room(items_.size() * sizeof(EncodeItem)) +
                      ViewWriter::Room(units_.size() * sizeof(EncodeUnit)) + ViewWriter::Room(centres_.size()));
    if (error != Device::kNoError) return error;
    const int8_t* centres = views.Put(centres_.data(), centres_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      if (centre_at_[i] >= 0) items_[i].shared_centre = centres + centre_at_[i];
    }
    EncodeArgs args;
    args.items = views.Put(items_.data(), items_.size());
    args.units = views.Put(units_.data(), units_.size());
    args.num_units = Fit<int32_t>(units_.size());
    args.head_dim = head_dim_;
    args.kind = kind_;
    error = views.Send();
    if (error == Device::kNoError) error = device_.Launch(args, context_.stream);
    const Device::Error ended = device_.Finish(context_.stream);
    items_.clear(), units_.clear(), centres_.clear(), centre_at_.clear();
    used_ = 0;
    return error != Device::kNoError ? error : ended;
  }

 private:
  static constexpr size_t kMostItems = 4096;
  static CodecKind KindOf(const EncodeTask& task) { return task.codec->Tables().kind; }

  void AddKeys(const EncodeTask& task, const CodecTables* tables, int first, int count, size_t row_bytes) {
    const CodeLayout& layout = task.codec->layout();
    EncodeItem item;
    item.codec = tables;
    item.rows = context_.rows.data() + used_;
    item.stride_bytes = row_bytes;
    item.dtype = task.keys.dtype;
    item.out = PlanesFrom(layout, task.out, first);
    for (int i = 0; i < count; ++i, used_ += row_bytes) {
      memcpy(context_.rows.data() + used_, task.keys.row(first + i), row_bytes);
    }
    centre_at_.push_back(-1);
    if (task.shared_centre != nullptr) {
      centre_at_.back() = static_cast<int64_t>(centres_.size());
      const std::vector<int8_t>& values = task.shared_centre->values;
      centres_.insert(centres_.end(), values.begin(), values.end());
      item.shared_scale = task.shared_centre->scale;
    }
    for (int key = 0; key < count; key += UnitKeys(layout)) units_.push_back({static_cast<int>(items_.size()), key});
    items_.push_back(item);
  }

  Device& device_;
  StreamContext& context_;
  size_t used_ = 0;  // of the context's rows
  std::vector<EncodeItem> items_;
  std::vector<EncodeUnit> units_;
  std::vector<int8_t> centres_;     // shared ones, one after another
  std::vector<int64_t> centre_at_;  // of each item's; -1: none
  CodecKind kind_ = CodecKind::kRsq;
  int head_dim_ = 0;
};

}  // namespace

Device::Error EncodeOnDevice(const EncodeTask* tasks, const CodecTables* const* tables, int count,
                             StreamContext* context, bool* stopped) {
  EncodeBatch batch(context);
  Device::Error error = Device::kNoError;
  for (int i = 0; i < count && error == Device::kNoError && !*stopped; ++i) {
    error = batch.Add(tasks[i], tables[i]);
    *stopped = StopRequested();
  }
  return error == Device::kNoError && !*stopped ? batch.Flush() : error;
}

}  // namespace seine::cuda
