// Fields of messages by reflection: every one that a request has, set by its path, and whether a path exists.
#ifndef SEINE_TESTS_SERVICE_CONTRACT_FIELDS_H_
#define SEINE_TESTS_SERVICE_CONTRACT_FIELDS_H_

#include <google/protobuf/message.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "seine/v1/status.pb.h"

namespace seine::test {

using Descriptor = google::protobuf::FieldDescriptor;
using Integer = __int128;  // any 64-bit one

// A scalar somewhere below a message.
struct FieldPlace {
  std::vector<std::pair<const Descriptor*, int>> steps;  // with the element; -1: not repeated
  const Descriptor* field() const { return steps.back().first; }
  std::string path() const;  // "items[0].keys.shape[1]"
  std::string rule() const;  // "items.keys.shape"
};

// Every scalar of the messages that are there, and of these the first two elements of what repeats. Scalars that are
// not given are among them, unless another of their oneof is.
std::vector<FieldPlace> ScalarsOf(const google::protobuf::Message& message);

bool IsInteger(const Descriptor* field);
bool IsFloat(const Descriptor* field);
// An integer where it stands, or, of another message of its type, would stand; whether it has been given.
Integer IntegerAt(const FieldPlace& place, const google::protobuf::Message& message);
bool IsGiven(const FieldPlace& place, const google::protobuf::Message& message);
// False where the field's type does not hold the value; the message is as it was then.
bool SetInteger(const FieldPlace& place, Integer value, google::protobuf::Message* message);
void SetFloat(const FieldPlace& place, double value, google::protobuf::Message* message);
void SetEnum(const FieldPlace& place, int value, google::protobuf::Message* message);  // also one without a name
void SetBool(const FieldPlace& place, bool value, google::protobuf::Message* message);
void SetString(const FieldPlace& place, const std::string& value, google::protobuf::Message* message);

// Names "message.field" of every integer that messages of this type may hold, at any depth; of those at these places.
std::set<std::string> IntegersBelow(const google::protobuf::Descriptor* type);

// Whether errors may name the path in a message of this type. Tensors have elements, as repeated fields do.
bool PathExists(const google::protobuf::Descriptor* type, const std::string& path);

// The first v1.Status anywhere in an answer that is not OK; nullptr: there is none.
const v1::Status* FirstFailure(const google::protobuf::Message& answer);

// Whether every number of an answer is finite, in tensors too. Log-sum-exps may be -infinity.
bool IsFinite(const google::protobuf::Message& answer);

}  // namespace seine::test

#endif  // SEINE_TESTS_SERVICE_CONTRACT_FIELDS_H_
