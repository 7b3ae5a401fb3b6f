#include "tests/fuzz/mutate/message.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "seine/v1/common.pb.h"
#include "tests/service/contract/spoil.h"

namespace seine::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMostDepth = 6, kMostElements = 64;
constexpr int64_t kMostTensor = 1 << 16;  // bytes

// Names of what the server under test holds, and words that settings know.
constexpr const char* kNames[] = {
    "plain",  "low",      "own",     "work",  "pristine", "copy",          "made",
    "doomed", "s",        "another", "knorm", "keydiff",  "snapkv",        "hybrid",
    "client", "qfilters", "h2o",     "rsq",   "balanced", "streaming_llm", "expected_attention",
    "float32"};

struct Spot {
  Message* owner;
  const FieldDescriptor* field;
};

// Every field of every message that is there.
void Collect(Message* message, int depth, std::vector<Spot>* out) {
  const Reflection* r = message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->field(i);
    out->push_back({message, field});
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || depth == kMostDepth) continue;
    if (!field->is_repeated()) {
      if (r->HasField(*message, field)) Collect(r->MutableMessage(message, field), depth + 1, out);
      continue;
    }
    for (int e = 0; e < std::min(3, r->FieldSize(*message, field)); ++e) {
      Collect(r->MutableRepeatedMessage(message, field, e), depth + 1, out);
    }
  }
}

int64_t ElementBytes(const v1::Tensor& tensor) {
  return tensor.dtype() == v1::D_TYPE_FLOAT16 || tensor.dtype() == v1::D_TYPE_BFLOAT16 ? 2 : 4;
}

// As many bytes as the shape says, unless that is many; new ones repeat those that are there.
void FillTensor(v1::Tensor* tensor) {
  int64_t bytes = ElementBytes(*tensor);
  for (const int64_t dim : tensor->shape()) {
    if (__builtin_mul_overflow(bytes, dim, &bytes) || bytes < 0 || bytes > kMostTensor) return;
  }
  std::string raw = tensor->raw();
  const size_t had = raw.size();
  raw.resize(static_cast<size_t>(bytes), '\x3c');
  for (size_t i = had; had > 0 && i < raw.size(); ++i) raw[i] = raw[i - had];
  tensor->set_raw(std::move(raw));
}

void MutateTensor(v1::Tensor* tensor, Random& random, const ByteMutator& bytes) {
  const auto dim = static_cast<int>(random.Below(static_cast<size_t>(std::max(1, tensor->shape_size()))));
  switch (random.Below(6)) {
    case 0:
      tensor->set_dtype(static_cast<v1::DType>(random.Below(6)));
      break;
    case 1:
      if (tensor->shape_size() == 0) tensor->add_shape(1);
      tensor->set_shape(dim, tensor->shape(dim) + static_cast<int64_t>(random.Below(5)) - 2);
      break;
    case 2:
      if (tensor->shape_size() > 0) tensor->set_shape(dim, static_cast<int64_t>(random.Below(300)));
      break;
    case 3:
      tensor->set_raw(bytes(tensor->raw()));
      return;
    default: {  // an element, or all of them, with the pattern of an awkward float or position
      const uint32_t patterns[] = {0,
                                   1,
                                   0x3c003c00,
                                   0x7c007c00,
                                   0x7f800000,
                                   0x7fc00000,
                                   0x80000000,
                                   0xffffffff,
                                   0x7f7fffff,
                                   0x7bff7bff,
                                   0x00800000,
                                   0xff7fffff,
                                   static_cast<uint32_t>(random.Below(256))};
      const uint32_t pattern = patterns[random.Below(std::size(patterns))];
      std::string* raw = tensor->mutable_raw();
      const size_t size = ElementBytes(*tensor) == 2 ? 2 : 4, count = raw->size() / size;
      const size_t begin = random.Below(count), end = random.OneIn(4) ? count : std::min(count, begin + 1);
      for (size_t i = begin; i < end; ++i) memcpy(raw->data() + i * size, &pattern, size);
    }
  }
  if (!random.OneIn(8)) FillTensor(tensor);
}

// Near to what it is, or awkward, or any.
int64_t NextInteger(int64_t now, Random& random) {
  const auto& awkward = test::AwkwardIntegers();
  switch (random.Below(4)) {
    case 0:
      return static_cast<int64_t>(static_cast<uint64_t>(now) + random.Below(9) - 4);
    case 1:
      return static_cast<int64_t>(random.Below(256));
    case 2:
      return static_cast<int64_t>(random.Next());
    default:
      return static_cast<int64_t>(awkward[random.Below(awkward.size())]);
  }
}

double NextFloat(double now, Random& random) {
  const auto& awkward = test::AwkwardFloats();
  if (random.OneIn(3)) return now * (static_cast<double>(random.Below(400)) / 200);
  return random.OneIn(2) ? awkward[random.Below(awkward.size())] : static_cast<double>(random.Below(1000)) / 1000;
}

std::string NextText(const std::string& now, Random& random, const ByteMutator& bytes) {
  const auto& awkward = test::AwkwardTexts();
  switch (random.Below(4)) {
    case 0:
      return bytes(now);
    case 1:
      return awkward[random.Below(awkward.size() - 2)];  // the longest are left out
    default:
      return kNames[random.Below(std::size(kNames))];
  }
}

int NextEnum(const FieldDescriptor* field, Random& random) {
  if (random.OneIn(8)) return static_cast<int>(random.Next());
  return field->enum_type()
      ->value(static_cast<int>(random.Below(static_cast<size_t>(field->enum_type()->value_count()))))
      ->number();
}

void MutateSingle(const Spot& spot, Random& random, const ByteMutator& bytes) {
  Message* const m = spot.owner;
  const FieldDescriptor* const f = spot.field;
  const Reflection* const r = m->GetReflection();
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r->SetInt32(m, f, static_cast<int32_t>(NextInteger(r->GetInt32(*m, f), random)));
    case FieldDescriptor::CPPTYPE_INT64:
      return r->SetInt64(m, f, NextInteger(r->GetInt64(*m, f), random));
    case FieldDescriptor::CPPTYPE_UINT32:
      return r->SetUInt32(m, f, static_cast<uint32_t>(NextInteger(r->GetUInt32(*m, f), random)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return r->SetUInt64(m, f, static_cast<uint64_t>(NextInteger(static_cast<int64_t>(r->GetUInt64(*m, f)), random)));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r->SetFloat(m, f, static_cast<float>(NextFloat(r->GetFloat(*m, f), random)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r->SetDouble(m, f, NextFloat(r->GetDouble(*m, f), random));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r->SetBool(m, f, !r->GetBool(*m, f));
    case FieldDescriptor::CPPTYPE_ENUM:
      return r->SetEnumValue(m, f, NextEnum(f, random));
    case FieldDescriptor::CPPTYPE_STRING:
      return r->SetString(m, f, NextText(r->GetString(*m, f), random, bytes));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (!r->HasField(*m, f)) {
        r->MutableMessage(m, f);
      } else if (f->message_type() == v1::Tensor::descriptor()) {
        MutateTensor(static_cast<v1::Tensor*>(r->MutableMessage(m, f)), random, bytes);
      } else {
        MutateMessage(r->MutableMessage(m, f), random, bytes);
      }
  }
}

void AddElement(const Spot& spot, Random& random) {
  Message* const m = spot.owner;
  const FieldDescriptor* const f = spot.field;
  const Reflection* const r = m->GetReflection();
  const int size = r->FieldSize(*m, f);
  if (size >= kMostElements) return;
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r->AddInt32(m, f, static_cast<int32_t>(NextInteger(1, random)));
    case FieldDescriptor::CPPTYPE_INT64:
      return r->AddInt64(m, f, NextInteger(1, random));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r->AddFloat(m, f, static_cast<float>(NextFloat(1, random)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r->AddDouble(m, f, NextFloat(1, random));
    case FieldDescriptor::CPPTYPE_ENUM:
      return r->AddEnumValue(m, f, NextEnum(f, random));
    case FieldDescriptor::CPPTYPE_STRING:
      return r->AddString(m, f, kNames[random.Below(std::size(kNames))]);
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message* const added = r->AddMessage(m, f);
      if (size > 0)
        added->CopyFrom(r->GetRepeatedMessage(*m, f, static_cast<int>(random.Below(static_cast<size_t>(size)))));
      return;
    }
    default:
      return;
  }
}

void MutateRepeated(const Spot& spot, Random& random, const ByteMutator& bytes) {
  const Reflection* const r = spot.owner->GetReflection();
  const int size = r->FieldSize(*spot.owner, spot.field);
  if (size == 0 || random.OneIn(3)) return AddElement(spot, random);
  const auto at = static_cast<int>(random.Below(static_cast<size_t>(size)));
  if (random.OneIn(2)) return r->SwapElements(spot.owner, spot.field, 0, at);
  if (spot.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && random.OneIn(2)) {
    Message* const element = r->MutableRepeatedMessage(spot.owner, spot.field, at);
    if (element->GetDescriptor() != v1::Tensor::descriptor()) return MutateMessage(element, random, bytes);
    return MutateTensor(static_cast<v1::Tensor*>(element), random, bytes);
  }
  r->RemoveLast(spot.owner, spot.field);
}

}  // namespace

void MutateMessage(Message* message, Random& random, const ByteMutator& bytes) {
  std::vector<Spot> spots;
  Collect(message, 0, &spots);
  if (spots.empty()) return;
  const Spot& spot = spots[random.Below(spots.size())];
  if (random.OneIn(16)) {
    spot.owner->GetReflection()->ClearField(spot.owner, spot.field);
  } else if (spot.field->is_repeated()) {
    MutateRepeated(spot, random, bytes);
  } else {
    MutateSingle(spot, random, bytes);
  }
}

}  // namespace seine::fuzz
