// Tensors: a part of spoil.h.
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "seine/v1/common.pb.h"
#include "tests/service/contract/spoil.h"

namespace seine::test {
namespace {

using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int64_t kSizes[] = {0, 1, 2, -1, int64_t{1} << 31, int64_t{1} << 32, INT64_MAX};
constexpr size_t kMostRank = 3;  // whose sizes are all combined

// Tensors of a message, in the order of its fields.
void Tensors(Message* message, std::vector<v1::Tensor*>* out) {
  if (message->GetDescriptor() == v1::Tensor::descriptor()) return out->push_back(static_cast<v1::Tensor*>(message));
  const Reflection* r = message->GetReflection();
  std::vector<const Descriptor*> fields;
  r->ListFields(*message, &fields);
  for (const Descriptor* field : fields) {
    if (field->cpp_type() != Descriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      Tensors(r->MutableMessage(message, field), out);
      continue;
    }
    for (int i = 0; i < r->FieldSize(*message, field); ++i) Tensors(r->MutableRepeatedMessage(message, field, i), out);
  }
}

size_t SizeOf(const v1::Tensor& tensor) {
  return tensor.dtype() == v1::D_TYPE_FLOAT16 || tensor.dtype() == v1::D_TYPE_BFLOAT16 ? 2 : 4;
}

class TensorSpoiler {
 public:
  TensorSpoiler(const Message& right, size_t number, const SpoiltRequest& visit)
      : right_(right), number_(number), visit_(visit) {
    With(
        "", [this](v1::Tensor* tensor) { tensor_ = *tensor; }, /*tell=*/false);
  }

  void All() {
    Types();
    Ranks();
    Sizes();
    Bytes();
    Elements();
  }

 private:
  template <typename Change>
  void With(const std::string& what, const Change& change, bool tell = true) {
    const std::unique_ptr<Message> request(right_.New());
    request->CopyFrom(right_);
    std::vector<v1::Tensor*> tensors;
    Tensors(request.get(), &tensors);
    change(tensors[number_]);
    if (tell) visit_(absl::StrCat("tensor ", number_, ": ", what), *request);
  }

  void Types() {
    for (const int type : {INT32_MIN, -1, 0, 1, 2, 3, 4, 5, 6, 1000, INT32_MAX}) {
      With(absl::StrCat("type ", type), [&](v1::Tensor* t) { t->set_dtype(static_cast<v1::DType>(type)); });
    }
  }
  void Ranks() {
    With("no shape", [](v1::Tensor* t) { t->clear_shape(); });
    for (const int more : {1, 2, 7, 1000}) {
      With(absl::StrCat(more, " dimensions more"), [&](v1::Tensor* t) {
        for (int i = 0; i < more; ++i) t->add_shape(1);
      });
    }
    With("a dimension less", [](v1::Tensor* t) { t->mutable_shape()->RemoveLast(); });
    With("turned round", [](v1::Tensor* t) {
      for (int i = 0, j = t->shape_size() - 1; i < j; ++i, --j) t->mutable_shape()->SwapElements(i, j);
    });
  }
  // All combinations, the right size of each dimension among them.
  void Sizes() {
    const auto rank = static_cast<size_t>(tensor_.shape_size());
    if (rank > kMostRank) return;
    constexpr size_t kChoices = std::size(kSizes) + 1;
    size_t combinations = 1;
    for (size_t i = 0; i < rank; ++i) combinations *= kChoices;
    for (size_t c = 0; c < combinations; ++c) {
      With(absl::StrCat("sizes ", c), [&](v1::Tensor* t) {
        for (size_t i = 0, rest = c; i < rank; ++i, rest /= kChoices) {
          const size_t choice = rest % kChoices;
          if (choice < std::size(kSizes)) t->set_shape(static_cast<int>(i), kSizes[choice]);
        }
      });
    }
  }
  void Bytes() {
    With("no bytes", [](v1::Tensor* t) { t->clear_raw(); });
    With("empty bytes", [](v1::Tensor* t) { t->set_raw(""); });
    With("a byte less", [](v1::Tensor* t) { t->mutable_raw()->pop_back(); });
    With("a byte more", [](v1::Tensor* t) { t->mutable_raw()->push_back('x'); });
    With("twice", [](v1::Tensor* t) { t->mutable_raw()->append(std::string(t->raw())); });
    With("half", [](v1::Tensor* t) { t->mutable_raw()->resize(t->raw().size() / 2); });
    With("nothing of it", [](v1::Tensor* t) { t->Clear(); });
  }
  // Of the type that it has, and as fp32 of the same shape.
  void Elements() {
    const uint32_t patterns[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x7f7fffff, 0xff7fffff,
                                 0x00000001, 0x80000000, 0xffffffff, 0x7fffffff, 0x7c007c00, 0xfc00fc00,
                                 0x7e007e00, 0x7bff7bff, 0x7f807f80, 0x7fc07fc0, 0x7f7f7f7f, 0x00010001};
    const size_t size = SizeOf(tensor_), count = tensor_.raw().size() / size;
    for (const uint32_t pattern : patterns) {
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        With(absl::StrCat("element ", at, " = ", absl::Hex(pattern)),
             [&](v1::Tensor* t) { memcpy(t->mutable_raw()->data() + at * size, &pattern, size); });
      }
      With(absl::StrCat("all elements = ", absl::Hex(pattern)), [&](v1::Tensor* t) {
        for (size_t at = 0; at < count; ++at) memcpy(t->mutable_raw()->data() + at * size, &pattern, size);
      });
      With(absl::StrCat("all fp32 elements = ", absl::Hex(pattern)), [&](v1::Tensor* t) {
        t->set_dtype(v1::D_TYPE_FLOAT32);
        t->mutable_raw()->resize(count * 4);
        for (size_t at = 0; at < count; ++at) memcpy(t->mutable_raw()->data() + at * 4, &pattern, 4);
      });
    }
  }

  const Message& right_;
  const size_t number_;
  const SpoiltRequest& visit_;
  v1::Tensor tensor_;  // as it is right
};

}  // namespace

void SpoilTensors(const Message& right, const SpoiltRequest& visit) {
  const std::unique_ptr<Message> copy(right.New());
  copy->CopyFrom(right);
  std::vector<v1::Tensor*> tensors;
  Tensors(copy.get(), &tensors);
  for (size_t i = 0; i < tensors.size(); ++i) TensorSpoiler(right, i, visit).All();
}

}  // namespace seine::test
